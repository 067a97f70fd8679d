"""Removing a log: it is there, whole, or it is gone, and nobody goes on writing into it."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from eventlog import EventLog, LogError, LogLockedError
from eventlog.errors import FencedError, UnsupportedFormatError
from eventlog.files.api import Files
from eventlog.files.lock import LOCK_NAME
from eventlog.files.memory import MemoryFiles
from eventlog.files.posix import OSFiles
from eventlog.remove_log import purge_removed, remove, removed_from
from eventlog.testing import Crash, SimulatedDisk
from tests.property.encrypted import KEY

ROOT, PATH = "home", "home/log"


@pytest.fixture(params=[OSFiles, MemoryFiles, SimulatedDisk])
def files(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Files:
    monkeypatch.chdir(tmp_path)
    made: Files = request.param()
    return made


def written(files: Files, path: str = PATH, records: int = 3) -> None:
    with EventLog.open(path, files=files) as log:
        for n in range(records):
            log.append("n", n)


def kinds(files: Files, path: str = PATH) -> list[object]:
    with EventLog.read(path, files=files) as reader:
        return [record.body for record in reader.records()]


def test_a_removed_log_is_gone_and_one_of_its_name_begins_anew(files: Files) -> None:
    written(files)
    written(files, "home/other")
    remove(PATH, files=files)
    assert files.list_directories(ROOT) == ["other"]
    with pytest.raises(FileNotFoundError):
        remove(PATH, files=files)
    written(files, records=1)
    assert (kinds(files), kinds(files, "home/other")) == ([0], [0, 1, 2])


def test_a_log_that_went_on_since_it_was_looked_at_is_not_removed(files: Files) -> None:
    written(files)
    with pytest.raises(LogError, match="ends at LSN 3, not at 2"):
        remove(PATH, files=files, at=2)
    assert kinds(files) == [0, 1, 2]
    remove(PATH, files=files, at=3)
    assert files.list_directories(ROOT) == []


def test_only_a_log_is_removed_and_only_if_nothing_else_is_with_it(files: Files) -> None:
    files.make_directory("home/photos").open("otter.jpg", write=True, create=True).close()
    with pytest.raises(UnsupportedFormatError, match="not a log"):
        remove("home/photos", files=files)
    written(files)
    files.open_directory(PATH).open("notes.txt", write=True, create=True).close()
    with pytest.raises(UnsupportedFormatError, match=r"'notes.txt'"):
        remove(PATH, files=files)
    files.make_directory("home/log/inbox")
    assert kinds(files) == [0, 1, 2]
    files.open_directory(PATH).remove("notes.txt")
    remove(PATH, files=files, also={"inbox": None})
    assert files.list_directories(ROOT) == ["photos"]


def test_an_encrypted_log_is_removed_without_its_key() -> None:
    disk = SimulatedDisk()
    with EventLog.open(PATH, files=disk, encryption=KEY) as log:
        log.append("n", 0)
    remove(PATH, files=disk, at=1)
    assert disk.list_directories(ROOT) == []


def test_a_damaged_log_is_removed(files: Files) -> None:
    written(files)
    name = sorted(files.open_directory(PATH).names())[0]
    files.open_directory(PATH).open(name, write=True).pwrite(b"?" * 300, 0)
    remove(PATH, files=files)
    assert files.list_directories(ROOT) == []


def test_links_are_deleted_and_not_followed(tmp_path: Path) -> None:
    files, kept = OSFiles(), tmp_path / "kept"
    (kept / "inside").mkdir(parents=True)
    (kept / "inside" / "file").write_text("dear")
    grave = tmp_path / "home" / ".log.removed-00000000"
    grave.mkdir(parents=True)
    (grave / "link").symlink_to(kept)
    (grave / "inbox").symlink_to(kept / "inside")
    (grave / "1.seg").symlink_to(kept / "inside" / "file")
    assert purge_removed(str(tmp_path / "home"), files=files) == 1
    assert (kept / "inside" / "file").read_text() == "dear"
    assert list((tmp_path / "home").iterdir()) == []
    (tmp_path / "home" / ".other.removed-00000000").symlink_to(kept)
    assert purge_removed(str(tmp_path / "home"), files=files) == 0
    with pytest.raises(LogError, match="symbolic link"):
        files.delete(str(tmp_path / "home" / ".other.removed-00000000"))
    assert (kept / "inside" / "file").read_text() == "dear"


@pytest.mark.parametrize(
    ("name", "of"),
    [
        (".log.removed-0123abcd", "log"),
        (".a.removed-b.removed-0123abcd", "a.removed-b"),
        ("log", ""),
        (".log", ""),
        (".log.removed-", ""),
        (".log.removed-0123ABCD", ""),
        ("log.removed-0123abcd", ""),
        (".removed-0123abcd", ""),
        ("..removed-0123abcd", ""),
    ],
)
def test_what_a_removal_leaves_is_known_by_its_name(name: str, of: str) -> None:
    assert removed_from(name) == of


def calls_of_a_removal() -> int:
    disk = SimulatedDisk()
    written(disk)
    before = len(disk.calls)
    remove(PATH, files=disk)
    return len(disk.calls) - before


def check_all_or_nothing(disk: SimulatedDisk, is_removed: bool | None) -> None:
    """The log is whole or gone, and what is left of it can be finished; None: either is right."""
    there = disk.list_directories(ROOT)
    whole = "log" in there
    assert is_removed is None or whole is not is_removed
    if whole:
        assert kinds(disk) == [0, 1, 2]
    purge_removed(ROOT, files=disk)
    assert disk.list_directories(ROOT) == ["log"] * whole
    if whole:
        assert kinds(disk) == [0, 1, 2]
        remove(PATH, files=disk)
    written(disk, records=1)
    assert kinds(disk) == [0]


@pytest.mark.parametrize("call", range(calls_of_a_removal()))
def test_a_crash_in_a_removal_leaves_a_log_or_nothing(call: int) -> None:
    disk = SimulatedDisk()
    written(disk)
    disk.crash_at(call)
    with pytest.raises(Crash):
        remove(PATH, files=disk)
    renamed = "log" not in disk.list_directories(ROOT)
    check_all_or_nothing(disk.after_process_death(), renamed)
    durable = renamed and "sync directory" in disk.calls[disk.calls.index("rename") :][:-1]
    for after in disk.power_losses(torn=False):
        check_all_or_nothing(after, True if durable else None if renamed else False)


def test_what_is_finished_was_made_durable_before() -> None:
    """A removal whose rename was never flushed: should it come undone, the log must be whole."""
    disk = SimulatedDisk()
    written(disk)
    disk.crash_at([*range(99)][calls_until_rename() + 1])
    with pytest.raises(Crash):
        remove(PATH, files=disk)
    after = disk.after_process_death()
    for call in range(99):
        again = after.after_process_death()
        again.crash_at(call)
        try:
            purge_removed(ROOT, files=again)
        except Crash:
            for lost in again.power_losses(torn=False):
                check_all_or_nothing(lost, None)
        else:
            return
    raise AssertionError("it never ends")


def calls_until_rename() -> int:
    disk = SimulatedDisk()
    written(disk)
    before = len(disk.calls)
    remove(PATH, files=disk)
    return disk.calls[before:].index("rename")


def in_between(files: Files, verb: str, what: Callable[[], None]) -> None:
    """Have something happen once, right after the first call of ``files.verb``."""
    call = getattr(files, verb)

    def then(*args: object) -> object:
        setattr(files, verb, call)
        result = call(*args)
        what()
        return result

    setattr(files, verb, then)


def test_whoever_opened_the_log_before_it_was_removed_writes_nothing_into_it(files: Files) -> None:
    written(files)
    in_between(files, "make_directory", lambda: remove(PATH, files=files))
    with pytest.raises(LogError, match="removed or moved away while it was being opened"):
        EventLog.open(PATH, files=files)
    assert files.list_directories(ROOT) == []
    written(files, records=1)
    assert kinds(files) == [0]


def test_nor_does_he_while_it_is_being_deleted(files: Files) -> None:
    """The lock is free again, the directory still there, under the other name."""
    written(files)

    def interrupted() -> None:
        os_delete = files.delete
        files.delete = lambda path: None  # type: ignore[method-assign]
        remove(PATH, files=files)
        files.delete = os_delete  # type: ignore[method-assign]

    in_between(files, "make_directory", interrupted)
    with pytest.raises(LogError, match="removed or moved away while it was being opened"):
        EventLog.open(PATH, files=files)
    assert purge_removed(ROOT, files=files) == 1
    assert files.list_directories(ROOT) == []


def test_a_log_that_another_removed_meanwhile_is_not_there(files: Files) -> None:
    written(files)
    in_between(files, "open_directory", lambda: remove(PATH, files=files))
    with pytest.raises((FileNotFoundError, UnsupportedFormatError)):
        remove(PATH, files=files)
    assert files.list_directories(ROOT) == []


def test_while_a_log_is_being_removed_nobody_gets_it(files: Files) -> None:
    written(files)
    move, refused = files.move, []

    def watched(path: str, new: str) -> None:
        with pytest.raises(LogLockedError):
            EventLog.open(PATH, files=files)
        refused.append(path)
        move(path, new)
        assert purge_removed(ROOT, files=files) == 0, "somebody is at it"

    files.move = watched  # type: ignore[method-assign]
    remove(PATH, files=files)
    assert refused == [PATH]
    assert files.list_directories(ROOT) == []


def test_a_log_that_is_taken_over_while_it_is_removed_stays() -> None:
    disk = SimulatedDisk()
    written(disk)
    taken: list[EventLog] = []

    def take_over(path: str, new: str) -> None:
        if not taken:  # looked at before it is renamed: its owner knows nothing of it
            taken.append(EventLog.open(PATH, takeover=True, files=disk))
        SimulatedDisk.move(disk, path, new)

    disk.move = take_over  # type: ignore[method-assign]
    with pytest.raises(FencedError):
        remove(PATH, files=disk)
    taken[0].append("n", 3)
    taken[0].close()
    assert kinds(disk) == [0, 1, 2, 3]
    assert disk.list_directories(ROOT) == ["log"]


def test_a_takeover_of_a_log_that_is_renamed_already_is_refused() -> None:
    disk = SimulatedDisk()
    written(disk)

    def opened() -> None:
        move = disk.move

        def renamed_first(path: str, new: str) -> None:
            move(path, new)
            raise Crash

        disk.move = renamed_first  # type: ignore[method-assign]
        with pytest.raises(Crash):
            remove(PATH, files=disk)

    in_between(disk, "make_directory", opened)
    with pytest.raises(LogError, match="removed or moved away"):
        EventLog.open(PATH, takeover=True, files=disk)


def test_a_reader_of_a_removed_log_is_told(files: Files) -> None:
    written(files)
    with EventLog.read(PATH, files=files) as reader:
        remove(PATH, files=files)
        with pytest.raises(UnsupportedFormatError):
            list(reader.records())


def test_a_removal_that_cannot_be_flushed_is_an_error_and_finished_later() -> None:
    disk = SimulatedDisk()
    written(disk)
    disk.fail_at("sync directory", 0, 5)
    with pytest.raises(OSError, match="Input/output"):
        remove(PATH, files=disk)
    (left,) = disk.list_directories(ROOT)
    assert removed_from(left) == "log"
    assert LOCK_NAME in disk.directories[f"{ROOT}/{left}"], "nothing is deleted yet"
    for after in disk.power_losses(torn=False):
        check_all_or_nothing(after, None)
    assert purge_removed(ROOT, files=disk) == 1


def killed(disk: SimulatedDisk, path: str) -> str:
    """What a removal leaves that is killed before it deletes anything."""
    delete, disk.delete = disk.delete, lambda path: None  # type: ignore[method-assign]
    remove(path, files=disk)
    disk.delete = delete  # type: ignore[method-assign]
    return next(name for name in disk.list_directories(ROOT) if path.endswith(removed_from(name)))


def test_remains_that_cannot_be_deleted_do_not_keep_the_others() -> None:
    disk = SimulatedDisk()
    for name in ("a", "b", "c", "d"):
        written(disk, f"{ROOT}/{name}")
        killed(disk, f"{ROOT}/{name}")
    delete = disk.delete

    def refuses(path: str) -> None:
        if removed_from(path.rpartition("/")[2]) in {"a", "c"}:
            raise PermissionError(errno.EACCES, "Permission denied", path)
        delete(path)

    disk.delete = refuses  # type: ignore[method-assign]
    with pytest.raises(PermissionError, match="could not be deleted: Permission denied, and 1 mor"):
        purge_removed(ROOT, files=disk)
    assert [removed_from(name) for name in disk.list_directories(ROOT)] == ["a", "c"]
    disk.delete = delete  # type: ignore[method-assign]
    assert purge_removed(ROOT, files=disk) == 2


def test_remains_are_deleted_from_a_full_disk() -> None:
    """Even if the process died before it wrote the owner into the lock file."""
    disk = SimulatedDisk()
    written(disk)
    left = killed(disk, PATH)
    disk.open_directory(f"{ROOT}/{left}").open(LOCK_NAME, write=True).truncate(0)
    for verb in ("write", "truncate"):
        disk.fail_at(verb, 0, errno.ENOSPC)
    assert purge_removed(ROOT, files=disk) == 1
    assert disk.list_directories(ROOT) == []


def test_a_log_is_removed_only_with_inner_logs_that_end_where_they_did(files: Files) -> None:
    written(files)
    with pytest.raises(LogError, match="inbox ends at LSN 0, not at 1"):
        remove(PATH, files=files, at=3, also={"inbox": 1})
    written(files, f"{PATH}/inbox", records=2)
    for end in (0, 1):
        with pytest.raises(LogError, match=f"inbox ends at LSN 2, not at {end}"):
            remove(PATH, files=files, at=3, also={"inbox": end})
    with EventLog.open(f"{PATH}/inbox", files=files), pytest.raises(LogLockedError):
        remove(PATH, files=files, at=3, also={"inbox": 2})  # its owner may write another record
    assert kinds(files) == [0, 1, 2] and kinds(files, f"{PATH}/inbox") == [0, 1]
    remove(PATH, files=files, at=3, also={"inbox": 2})
    assert files.list_directories(ROOT) == []


def test_an_inner_log_is_not_begun_while_the_log_is_removed() -> None:
    class Late(MemoryFiles):
        def move(self, path: str, new: str) -> None:
            with pytest.raises(LogLockedError):
                EventLog.open(f"{PATH}/inbox", files=self)
            super().move(path, new)

    files = Late()
    written(files)
    remove(PATH, files=files, also={"inbox": 0})
    assert files.list_directories(ROOT) == []
