"""Who may write, by the lock file; races between owners in the order that hurts."""

from __future__ import annotations

import json
from itertools import islice, product
from unittest.mock import Mock

import pytest

from eventlog import EventLog, LogError, LogLockedError
from eventlog.errors import FencedError
from eventlog.files.lock import LOCK_NAME, Owner, claim, former_of, owner_of
from eventlog.files.memory import MemoryFiles, OpenMemoryFile
from eventlog.format.frame import EPOCH_MAX
from eventlog.testing import Crash, SimulatedDisk


def take(disk: SimulatedDisk, takeover: bool = False, last_epoch: int = 0) -> Owner:
    return claim(disk, disk.make_directory("log"), last_epoch, takeover)


def content(disk: SimulatedDisk) -> bytearray:
    return disk.directories["log"][LOCK_NAME].content


def test_the_lock_file_says_who_has_the_log() -> None:
    disk = SimulatedDisk()
    take(disk)
    found = json.loads(content(disk))
    assert (found["epoch"], found["pid"], found["host"]) == (1, 1, "simulated")
    with pytest.raises(LogLockedError, match="process 1 on simulated, since 2023") as caught:
        take(disk)
    assert (caught.value.pid, caught.value.host) == (1, "simulated")


def test_a_claim_looks_no_more_often_than_it_has_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eventlog.files.lock._read_epoch", Mock(side_effect=[4, 4, 4]))
    assert take(SimulatedDisk(), last_epoch=4).epoch == 5


def test_an_owner_is_alive_while_it_holds_the_byte_of_its_epoch() -> None:
    disk = SimulatedDisk()
    directory = disk.make_directory("log")
    assert owner_of(directory) is None
    take(disk, last_epoch=4).close()
    other = directory.open(LOCK_NAME, write=True)
    for byte, alive in ((4, False), (6, False), (5, True)):
        assert other.lock(byte)
        found = owner_of(directory)
        assert found is not None and (found.epoch, found.alive) == (5, alive)


def test_an_owner_that_lost_the_log_is_told_so_every_time() -> None:
    disk = SimulatedDisk()
    old = take(disk)
    new = take(disk, takeover=True)
    assert (new.epoch, new.former) == (2, "process 1 on simulated")
    for _ in range(2):
        with pytest.raises(FencedError, match="epoch 2, ours 1"):
            old.check()
    new.check()
    with pytest.raises(LogLockedError):
        take(disk)


def test_there_is_an_end_to_the_owners_that_a_log_may_claim_to_have_had() -> None:
    disk = SimulatedDisk()
    take(disk, last_epoch=EPOCH_MAX - 1).close()
    before = content(disk)[:]
    with pytest.raises(LogError, match=f"claims to have had {EPOCH_MAX} owners"):
        take(disk)
    assert content(disk) == before


def test_while_an_owner_that_lost_the_log_is_alive_the_log_is_contested() -> None:
    """It may write where it was. Who comes after the one that took over must beware as well."""
    disk = SimulatedDisk()
    old = take(disk)
    take(disk, takeover=True).close()
    third = take(disk)
    assert third.living_former() == "process 1 on simulated, or one before it"
    old.close()
    assert third.living_former() == "", "the kernel says when it has ended"
    third.close()
    assert not take(disk).former


def test_who_gives_the_log_up_and_may_still_act_holds_no_one_up() -> None:
    disk = SimulatedDisk()
    first = take(disk)
    first.may_still_act(True)
    first.close()
    directory = disk.make_directory("log")
    assert former_of(directory) == "an owner before process 1 on simulated"
    second = take(disk)
    assert second.living_former() == "process 1 on simulated, or one before it"
    second.may_still_act(True)
    second.close()
    third = take(disk)
    first.may_still_act(False)
    assert third.living_former(), "the second may still act"
    second.may_still_act(False)
    assert third.living_former() == ""
    third.may_still_act(True)
    third.may_still_act(False)
    third.close()
    assert former_of(directory) == ""
    assert take(disk).former == ""


@pytest.mark.parametrize("left", [None, b"", bytes(512), b"garbage", b'{"epoch": 1}'])
def test_a_lock_file_that_knows_less_than_the_segments_is_contested(left: bytes | None) -> None:
    disk = SimulatedDisk()
    old = take(disk, last_epoch=4)
    if left is None:
        del disk.directories["log"][LOCK_NAME]
    else:
        content(disk)[:] = left
        old.close()
    new = take(disk, last_epoch=5)
    assert (new.epoch, new.former) == (6, "a process whose lock file is gone")
    with pytest.raises(FencedError):
        if left is None:
            old.check()
        else:
            raise FencedError


def test_after_a_power_loss_no_owner_is_taken_for_alive() -> None:
    """Three owners, and every disk that a power loss may leave behind each thing that they do."""

    def live(disk: SimulatedDisk) -> None:
        with EventLog.open("log", files=disk, segment_size=200) as log:
            assert not log.last_lsn or log.former_owner() == ""
            for _ in range(2):
                log.append("a", "x" * 100)
                log.commit()

    def crashed(disk: SimulatedDisk, call: int) -> bool:
        disk.crash_at(call)
        try:
            live(disk)
        except Crash:
            return True
        return False

    lost = 0
    for first, call in product(range(7, 30, 5), range(0, 40, 3)):
        disk = SimulatedDisk()
        crashed(disk, first)
        for left in islice(disk.power_losses(torn=False), 20):
            if crashed(left, call):
                for image in islice(left.power_losses(torn=False), 20):
                    live(image)
                    lost += 1
    assert lost > 300


def test_a_lock_file_that_is_removed_under_its_owner_fences_it() -> None:
    disk = SimulatedDisk()
    owner = take(disk)
    del disk.directories["log"][LOCK_NAME]
    with pytest.raises(FencedError, match="removed or replaced"):
        owner.check()


def test_an_owner_that_comes_and_goes_between_two_lines_does_not_lend_its_epoch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = SimulatedDisk()
    take(disk).close()
    locked: list[int] = []

    def lock(file: OpenMemoryFile, slot: int) -> bool:
        if not locked:
            locked.append(slot)
            take(disk).close()
        return original(file, slot)

    opened = type(disk.make_directory("log").open(LOCK_NAME))
    original = opened.lock
    monkeypatch.setattr(opened, "lock", lock)
    owner = take(disk)
    assert owner.epoch == 3
    owner.check()


def test_a_write_of_the_lock_file_that_is_cut_short_is_completed() -> None:
    disk = SimulatedDisk()
    disk.shorten_at(0, 10)
    owner = take(disk)
    owner.check()
    assert json.loads(content(disk))["epoch"] == 1


def test_a_full_disk_leaves_the_lock_free() -> None:
    disk = SimulatedDisk()
    disk.fail_at("write", 0, 28)
    with pytest.raises(OSError):
        take(disk)
    assert take(disk).epoch == 1


def test_a_file_in_memory_that_two_threads_close_gives_back_each_lock_once() -> None:
    """The second thread closes it between two steps of the first."""
    directory = MemoryFiles().make_directory("log")
    file = directory.open(LOCK_NAME, write=True, create=True)

    class Locks(dict[int, object]):
        def __delitem__(self, slot: int) -> None:
            file.close()
            super().__delitem__(slot)

    other = directory.open(LOCK_NAME, write=True)
    locks = file._inode.locks = Locks()
    assert file.lock(0) and file.lock(1) and not other.lock(0)
    file.close()
    assert not locks and other.lock(0)
    file.close()
    assert not file.lock(0)
