"""The model that the crash tests rest on is itself checked: it must lose what a disk may lose."""

from __future__ import annotations

import errno

import pytest

from eventlog.files.api import Directory, File
from eventlog.testing import SECTOR, Crash, SimulatedDisk

SEEDS = range(300)


def fresh(durable: bytes | None = None) -> tuple[SimulatedDisk, Directory, File]:
    """A disk, a directory, and its file "f": durable with this content, else not at all."""
    disk = SimulatedDisk()
    directory = disk.make_directory("d")
    file = directory.open("f", write=True, create=True)
    if durable is not None:
        file.pwrite(durable, 0)
        file.sync()
        directory.sync()
    return disk, directory, file


def content(disk: SimulatedDisk, name: str = "f") -> bytes | None:
    file = disk.directories["d"].get(name)
    return None if file is None else bytes(file.content)


def outcomes(disk: SimulatedDisk, name: str = "f") -> set[bytes | None]:
    return {content(disk.after_power_loss(seed), name) for seed in SEEDS}


def test_what_is_synced_with_its_name_is_never_lost() -> None:
    disk, directory, file = fresh()
    file.pwrite(b"data", 0)
    file.sync()
    assert outcomes(disk) == {None, b"data"}, "the name is not durable yet"
    directory.sync()
    assert outcomes(disk) == {b"data"}


def test_what_is_not_synced_may_be_there_torn_or_missing() -> None:
    disk, _, file = fresh(b"")
    file.pwrite(b"abc", 0)
    assert {b"", b"a", b"ab", b"abc"} <= outcomes(disk)
    assert b"\0\0\0" in outcomes(disk), "grown, without the data"
    assert content(disk.after_process_death()) == b"abc"


def test_a_later_write_may_be_there_without_an_earlier_one() -> None:
    disk, _, file = fresh(b"........")
    file.pwrite(b"1", 0)
    file.pwrite(b"2", 4)
    assert {b"........", b"1.......", b"....2...", b"1...2..."} <= outcomes(disk)


def test_sectors_of_a_long_write_are_lost_one_by_one() -> None:
    disk, _, file = fresh(b"." * 3 * SECTOR)
    file.pwrite(b"x" * 3 * SECTOR, 0)
    kept = {bytes(c[i] for i in (0, SECTOR, 2 * SECTOR)) for c in outcomes(disk) if c}
    assert {b"x.x", b".x.", b"..x"} <= kept


def test_what_a_file_grew_over_may_show_old_bytes() -> None:
    disk, _, file = fresh(b"")
    file.pwrite(b"a" * 700, 0)
    file.pwrite(b"b" * 700, 700)
    hole = {c[:700] for c in outcomes(disk) if c and c.endswith(b"b")}
    assert {bytes(700), b"a" * 700} <= hole


def test_a_truncation_may_be_lost() -> None:
    disk, _, file = fresh(b"abc")
    file.truncate(1)
    assert outcomes(disk) == {b"abc", b"a"}
    file.sync()
    assert outcomes(disk) == {b"a"}


def test_a_failed_sync_loses_for_good_what_can_still_be_read() -> None:
    """fsyncgate: the next sync reports success, and the data are not on the disk."""
    disk, _, file = fresh(b"old")
    file.pwrite(b"new", 0)
    disk.fail_at("sync", 0, errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        file.sync()
    file.sync()
    assert file.pread(3, 0) == b"new"
    assert {b"old", b"nld", b"ned", b"new"} == outcomes(disk), "nobody knows what got there"
    file.pwrite(b"NEW", 0)
    file.sync()
    assert outcomes(disk) == {b"NEW"}


def test_a_flush_makes_nothing_durable_that_a_failed_one_took_for_written() -> None:
    disk, _, file = fresh(b"....")
    file.pwrite(b"ab", 0)
    disk.fail_at("sync", 0, errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        file.sync()
    file.pwrite(b"cd", 1)
    file.sync()
    assert everything(disk) == {b".cd.", b"acd."}


def everything(disk: SimulatedDisk, name: str = "f") -> set[bytes | None]:
    return {content(after, name) for after in disk.power_losses()}


def test_every_loss_of_a_short_write() -> None:
    disk, _, file = fresh(b"....")
    file.pwrite(b"abc", 2)
    assert everything(disk) == {
        *(b"....", b"..ab", b"..abc"),
        *(b"..a.", b"..ab\0", b"....\0", b"..a.\0"),
        *(b"..ab\xff", b"....\xff", b"..a.\xff"),
        *(b"....c", b"..a.c", b"..ab"),  # stale: it was there once, as far as this disk knows
    }


def test_every_loss_has_every_subset_of_the_writes_and_of_the_names() -> None:
    disk, directory, file = fresh()
    file.pwrite(bytes(4), 0)
    file.sync()
    for i in range(4):
        file.pwrite(b"x", i)
    directory.open("g", write=True, create=True)
    found = [after.directories["d"] for after in disk.power_losses()]
    lists = [tuple(sorted(names)) for names in found]
    assert {*lists} == {(), ("f",), ("g",), ("f", "g")}
    for names in (("f",), ("f", "g")):
        contents = [bytes(d["f"].content) for d in found if tuple(sorted(d)) == names]
        assert sorted(contents) == sorted({*contents}) and len(contents) == 2**4
    assert lists.count(()) == 1, "without its name, what is in a file makes no difference"


def test_every_loss_of_a_long_write_knows_sectors() -> None:
    disk, _, file = fresh(b"." * 4 * SECTOR)
    file.pwrite(b"x" * 3 * SECTOR, 100)
    parts = (0, 100, SECTOR - 1, SECTOR, 2 * SECTOR - 1, 2 * SECTOR, 3 * SECTOR, 3 * SECTOR + 99)
    kept = {bytes(c[i] for i in parts) for c in everything(disk) if c}
    assert {b".xx.....", b"...xx...", b".....x..", b"......xx", b".xxxxx..", b"...xxxxx"} <= kept


def test_what_a_removed_file_held_may_turn_up_in_a_new_one() -> None:
    disk = SimulatedDisk()
    directory = disk.make_directory("d")
    old = directory.open("old", write=True, create=True)
    old.pwrite(b"secret", 0)
    old.sync()
    directory.remove("old")
    file = directory.open("f", write=True, create=True)
    file.sync()
    directory.sync()
    file.pwrite(b"text", 4)
    assert b"secrtext"[:4] + b"text" in everything(disk)


def test_after_a_process_death_the_losses_are_the_same() -> None:
    disk, _, file = fresh()
    file.pwrite(b"abc", 0)
    file.sync()
    file.pwrite(b"d", 3)
    assert everything(disk) == everything(disk.after_process_death())


def test_an_image_tells_disks_apart() -> None:
    disk, _, file = fresh()
    images = [disk.image()]
    for data in (b"", b"a", b"a\0"):
        file.pwrite(data, 0)
        images.append(disk.image())
    disk.make_directory("d").open("g", create=True)
    images.append(disk.image())
    assert images[0] == images[1] and len({*images}) == 4
    assert disk.after_process_death().image() == disk.image()


def test_reads_fail_and_lie_when_told_to() -> None:
    disk, _, file = fresh()
    file.pwrite(b"abc", 0)
    assert file.pread(3, 0) == b"abc"
    disk.fail_at("read", 1, errno.EIO)
    disk.misread_at(2, 9)
    assert file.pread(3, 0) == b"abc"
    with pytest.raises(OSError, match="Input/output"):
        file.pread(3, 0)
    assert [file.pread(3, 0), file.pread(3, 0)] == [b"a`c", b"abc"]


def test_names_may_change_in_any_order_until_the_directory_is_synced() -> None:
    disk = SimulatedDisk()
    directory = disk.make_directory("d")
    directory.open("f.new", write=True, create=True).sync()
    directory.sync()
    directory.publish("f.new", "f")
    found = {tuple(sorted(disk.after_power_loss(s).directories["d"])) for s in SEEDS}
    assert found == {(), ("f",), ("f.new",), ("f", "f.new")}
    with pytest.raises(FileExistsError):
        directory.open("g.new", write=True, create=True)
        directory.publish("g.new", "f")


def test_of_many_names_that_no_sync_made_durable_any_may_be_lost() -> None:
    """Not by making all 2 ** 60 lists that there may be."""
    disk = SimulatedDisk()
    directory = disk.make_directory("d")
    made = [f"f{number}" for number in range(60)]
    for name in made:
        directory.open(name, write=True, create=True)
    found = [{*disk.after_power_loss(s).directories["d"]} for s in SEEDS]
    assert set() in found and {*made} in found
    assert all({name in one for one in found} == {True, False} for name in made)
    assert len({frozenset(one) for one in found}) > 100


def test_what_is_found_after_a_power_loss_stays() -> None:
    disk, _, file = fresh()
    file.pwrite(b"abc", 0)
    for seed in range(20):
        after = disk.after_power_loss(seed)
        assert outcomes(after) == {content(after)}


def test_the_same_seed_is_the_same_loss() -> None:
    disk, _, file = fresh()
    file.pwrite(b"x" * 5000, 0)
    for seed in range(20):
        first, second = disk.after_power_loss(seed), disk.after_power_loss(seed)
        assert content(first) == content(second)


def test_a_crash_comes_before_its_call_takes_effect_and_stays() -> None:
    disk, directory, file = fresh()
    disk.crash_at(1, torn_size=2)
    file.pwrite(b"one", 0)
    with pytest.raises(Crash):
        file.pwrite(b"two", 3)
    assert content(disk) == b"onetw"
    for call in (file.sync, directory.sync, lambda: file.truncate(0)):
        with pytest.raises(Crash):
            call()
    after = disk.after_process_death().make_directory("d")
    assert after.open("f").pread(9, 0) == b"onetw"


def test_faults_and_short_writes_hit_the_call_they_are_meant_for() -> None:
    disk, _, file = fresh()
    file.pwrite(b"0", 0)
    disk.fail_at("write", 1, errno.ENOSPC)
    disk.shorten_at(0, 2)
    assert file.pwrite(b"abcd", 1) == 2
    with pytest.raises(OSError, match="No space"):
        file.pwrite(b"xx", 9)
    assert file.pwrite(b"cd", 3) == 2
    assert content(disk) == b"0abcd"


def test_locks_go_with_the_process() -> None:
    disk, directory, first = fresh()
    second = directory.open("f", write=True)
    assert first.lock(1) and not second.lock(1) and second.lock(2)
    assert disk.after_process_death().make_directory("d").open("f").lock(1)
    first.close()
    assert second.lock(1)


def directories_after(disk: SimulatedDisk) -> set[tuple[tuple[str, tuple[str, ...]], ...]]:
    every = [*disk.power_losses(), *map(disk.after_power_loss, range(30))]
    return {
        tuple((path, tuple(sorted(names))) for path, names in sorted(one.directories.items()))
        for one in every
    }


def held() -> SimulatedDisk:
    disk = SimulatedDisk()
    directory = disk.make_directory("d/a")
    for name in ("f", "g"):
        directory.open(name, create=True)
    directory.sync()
    return disk


def test_a_renamed_directory_may_have_either_name_until_it_is_synced() -> None:
    disk = held()
    disk.crash_at(1)
    with pytest.raises(Crash):
        disk.move("d/a", "d/b")
    assert directories_after(disk) == {(("d/a", ("f", "g")),), (("d/b", ("f", "g")),)}
    assert disk.after_process_death().list_directories("d") == ["b"]
    assert directories_after(disk.after_process_death()) == directories_after(disk)
    disk = held()
    disk.move("d/a", "d/b")
    assert directories_after(disk) == {(("d/b", ("f", "g")),)}


def test_of_a_deleted_directory_any_part_may_be_left() -> None:
    disk = held()
    disk.delete("d/a")
    parts = {(("d/a", part),) for part in ((), ("f",), ("g",), ("f", "g"))}
    assert directories_after(disk) == {(), *parts}
    assert disk.after_process_death().list_directories("d") == []
    assert directories_after(disk.after_process_death()) == {(), *parts}
    disk.make_directory("d/c")
    assert directories_after(disk) == {(("d/c", ()),)}, "its name was made durable"
    assert disk.make_directory("d/a").names() == []


def test_a_directory_that_was_renamed_and_deleted_may_be_back_under_its_old_name() -> None:
    disk = held()
    disk.crash_at(1)
    with pytest.raises(Crash):
        disk.move("d/a", "d/b")
    after = disk.after_process_death()
    after.delete("d/b")
    parts = ((), ("f",), ("g",), ("f", "g"))
    assert directories_after(after) == {
        (),
        *((("d/a", part),) for part in parts),
        *((("d/b", part),) for part in parts),
    }


def test_a_directory_that_was_deleted_may_be_back_under_the_new_name_of_the_one_around_it() -> None:
    disk = SimulatedDisk()
    for path in ("d/a", "d/a/in"):
        disk.make_directory(path).sync()
    disk.crash_at(1)
    with pytest.raises(Crash):
        disk.delete("d/a")
    after = disk.after_process_death()
    after.crash_at(1)
    with pytest.raises(Crash):
        after.move("d/a", "d/b")
    assert directories_after(after) == {
        (("d/a", ()), ("d/a/in", ())),
        (("d/a", ()),),
        (("d/b", ()),),
    }
    last = after.after_process_death()
    last.move("d/b", "d/c")
    assert directories_after(last) == {(("d/c", ()),)}
