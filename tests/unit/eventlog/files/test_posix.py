"""The real files and those in memory keep one contract."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest

from eventlog import EventLog, LogError
from eventlog.files import posix
from eventlog.files.api import Files, write_all
from eventlog.files.file_systems import Mount
from eventlog.files.memory import MemoryFiles
from eventlog.files.posix import OSDirectory, OSFile, OSFiles
from eventlog.testing import SimulatedDisk


@pytest.fixture(params=[OSFiles, MemoryFiles, SimulatedDisk])
def files(request: pytest.FixtureRequest) -> Files:
    made: Files = request.param()
    return made


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "root" / "log")


def test_bytes_and_sizes(files: Files, path: str) -> None:
    directory = files.make_directory(path)
    file = directory.open("f", write=True, create=True)
    assert (file.size(), file.pread(9, 0)) == (0, b"")
    assert file.pwrite(b"abc", 2) == 3
    assert (file.size(), file.pread(9, 0), file.pread(2, 3)) == (5, b"\0\0abc", b"bc")
    file.truncate(3)
    file.truncate(4)
    assert file.pread(9, 0) == b"\0\0a\0"
    file.sync()
    directory.sync()
    assert directory.open("f").pread(9, 2) == b"a\0"
    file.close()
    file.close()


def test_a_lock_is_of_one_opening_and_one_slot(files: Files, path: str) -> None:
    directory = files.make_directory(path)
    ours, other = (directory.open("f", write=True, create=True) for _ in range(2))
    assert ours.lock(3) and ours.lock(3)
    assert not other.lock(3)
    assert not ours.held(9), "by another opening"
    assert [other.held(slots) for slots in (0, 3, 4, 9)] == [False, False, True, True]
    assert [other.held(9, first) for first in (2, 3, 4)] == [True, True, False]
    assert not other.held(3, 3) and not other.held(3, 4)
    other.unlock(3)
    assert other.held(4), "it was not of the other"
    ours.unlock(3)
    assert other.lock(3) and other.lock(4) and ours.held(5)
    other.close()
    assert not ours.held(5) and ours.lock(4)
    ours.close()


def test_a_file_is_opened_to_be_read_or_to_be_written_too(path: str) -> None:
    directory = OSFiles().make_directory(path)
    directory.open("f", write=True, create=True).pwrite(b"x", 0)
    with pytest.raises(OSError, match="Bad file descriptor"):
        directory.open("f").pwrite(b"x", 0)


def test_where_linux_locks_and_flushes_are_not_there_others_are_used(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on macOS: a lock of the whole file, of which only another attempt can tell."""
    asked: list[tuple[int, ...]] = []
    monkeypatch.setattr(posix, "_F_OFD_SETLK", None)
    monkeypatch.setattr(posix, "_F_FULLFSYNC", 51)
    directory = OSFiles().make_directory(path)
    ours, other = (directory.open("f", write=True, create=True) for _ in range(2))
    assert ours.lock(0) and not other.lock(1) and not other.held(9)
    ours.unlock(0)
    assert other.lock(0)
    monkeypatch.setattr("fcntl.fcntl", lambda *args: asked.append(args))
    ours.sync()
    assert asked == [(ours._fd, 51)]
    ours.close()
    other.close()


def test_an_error_of_the_system_has_the_path_that_it_is_about(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = OSFiles().make_directory(path)
    file = directory.open("f", write=True, create=True)
    for verb, name in (
        (lambda: directory.open("no"), "no"),
        (lambda: directory.remove("no"), "no"),
        (lambda: directory.publish("no", "f"), "f"),
        (lambda: directory.replace("no", "f"), "f"),
    ):
        with pytest.raises(FileNotFoundError) as missing:
            verb()
        assert (missing.value.filename, missing.value.filename2) == (f"{path}/{name}", None)
    monkeypatch.setattr(file, "_fd", 1 << 20)
    monkeypatch.setattr(directory._descriptor, "number", 1 << 20)
    of_file = (
        lambda: file.pread(1, 0),
        lambda: file.pwrite(b"", 0),
        lambda: file.truncate(0),
        file.sync,
    )
    for act, where in (
        *((one, f"{path}/f") for one in of_file),
        (directory.names, path),
        (directory.sync, path),
    ):
        with pytest.raises(OSError, match="Bad file descriptor") as bad:
            act()
        assert bad.value.filename == where


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_what_root_makes_in_a_run_is_of_the_owner_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a store. Another user makes nothing there that the owner could not open."""
    run, owner = tmp_path / "run", 12345
    run.mkdir()
    os.chown(run, owner, owner)
    store, inbox = OSFiles(beneath=str(tmp_path)), str(run / "inbox")
    store.make_directory(str(tmp_path / "new")).open("f", write=True, create=True).close()
    for made in (tmp_path / "new", tmp_path / "new" / "f"):
        assert made.stat().st_uid == 0
    directory = store.make_directory(inbox)
    directory.open("f", write=True, create=True).close()
    OSFiles().make_directory(inbox).open("g", write=True, create=True).close()
    owners = {path.name: (path.stat().st_uid, path.stat().st_gid) for path in run.rglob("*")}
    assert owners == {"inbox": (owner, owner), "f": (owner, owner), "g": (0, 0)}
    monkeypatch.setattr(os, "geteuid", lambda: 54321)
    for make in (
        lambda: directory.open("h", write=True, create=True),
        lambda: store.make_directory(f"{inbox}/deeper"),
    ):
        with pytest.raises(LogError, match=f"belongs to user {owner}.* user 54321.*Nothing was"):
            make()
    with pytest.raises(FileNotFoundError):
        directory.open("h")
    directory.open("f", write=True, create=True).close()
    store.make_directory(inbox).close()
    OSFiles().make_directory(f"{inbox}/deeper").open("h", write=True, create=True).close()
    assert sorted(path.name for path in run.rglob("*")) == ["deeper", "f", "g", "h", "inbox"]


def test_what_cannot_be_deleted_is_named(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    files = OSFiles()
    files.make_directory(f"{path}/inbox").open("f", write=True, create=True)
    monkeypatch.setattr("os.unlink", Mock(side_effect=PermissionError(1, "not", "f")))
    with pytest.raises(PermissionError) as refused:
        files.delete(path)
    assert refused.value.filename == f"{path}/inbox/f"


def test_names(files: Files, path: str) -> None:
    with pytest.raises(FileNotFoundError):
        files.open_directory(path)
    directory = files.make_directory(path)
    with pytest.raises(FileNotFoundError):
        directory.open("f")
    file = directory.open("f.new", write=True, create=True)
    assert directory.identity("f") is None
    directory.publish("f.new", "f")
    assert directory.names() == ["f"]
    assert directory.identity("f") == file.identity() != None  # noqa: E711
    directory.open("g.new", write=True, create=True)
    with pytest.raises(FileExistsError):
        directory.publish("g.new", "f")
    directory.remove("f")
    assert directory.names() == ["g.new"]
    assert files.list_directories(path.removesuffix("/log")) == ["log"]
    assert files.list_directories(path + "/nothing") == []
    directory.close()


def test_a_write_that_comes_to_nothing_is_an_error() -> None:
    disk = SimulatedDisk()
    file = disk.make_directory("d").open("f", write=True, create=True)
    disk.shorten_at(0, 1)
    disk.shorten_at(1, 0)
    with pytest.raises(OSError, match="wrote none"):
        write_all(file, b"abc", 0)
    disk.shorten_at(0, 2)
    assert write_all(file, b"abcdef", 0, 2) == 2
    disk.shorten_at(0, 1)
    assert write_all(file, b"abcdef", 0, 4) == 4


@pytest.mark.parametrize("below", [False, True])
def test_new_directories_are_made_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, below: bool
) -> None:
    synced: list[object] = []
    sync = os.fsync

    def noted(fd: int) -> None:
        synced.append(os.fstat(fd).st_ino)
        sync(fd)

    def inode(path: Path) -> int:
        return path.stat().st_ino

    monkeypatch.setattr(os, "fsync", noted)
    files = OSFiles(beneath=str(tmp_path) if below else None)
    files.make_directory(str(tmp_path / "a" / "b")).close()
    assert synced[-2:] == [inode(tmp_path), inode(tmp_path / "a")]
    synced.clear()
    files.make_directory(str(tmp_path / "a" / "b")).close()
    assert synced == [inode(tmp_path / "a")], "whoever made it may have died before the sync"
    (tmp_path / "a" / "b" / "LOCK").touch()
    files.make_directory(str(tmp_path / "a" / "b")).close()
    assert len(synced) == 1


LINKS: dict[str, Callable[[OSFiles, str], object]] = {
    "open": lambda files, path: files.open_directory(path),
    "make": lambda files, path: files.make_directory(path),
    "make in it": lambda files, path: files.make_directory(f"{path}/new"),
    "list": lambda files, path: files.list_directories(path),
    "move": lambda files, path: files.move(f"{path}/log", f"{path}/other"),
    "delete": lambda files, path: files.delete(path),
    "delete in it": lambda files, path: files.delete(f"{path}/log"),
}


@pytest.mark.parametrize("use", LINKS)
@pytest.mark.parametrize("depth", ["", "a/"])
def test_below_a_directory_no_link_is_followed(use: str, depth: str, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (outside / "log").mkdir(parents=True)
    (tmp_path / "store" / depth).mkdir(parents=True)
    link = tmp_path / "store" / f"{depth}link"
    link.symlink_to(outside)
    (tmp_path / "way").symlink_to(tmp_path / "store")  # the way there is the user's
    files = OSFiles(beneath=str(tmp_path / "way"))
    for way in ("way/", "way//", "way/./", "way/../way/"):
        with pytest.raises(LogError, match="'link' is a symbolic link"):
            LINKS[use](files, f"{tmp_path}/{way}{depth}link")
    files.open_directory(f"{tmp_path}/store/{depth}link/log").close()  # the user's way to another
    assert [one.name for one in outside.iterdir()] == ["log"] and link.is_symlink()


class On(MemoryFiles):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def mount(self, directory: object) -> Mount:
        kind, *options = self.kind.split()
        return Mount(kind, options=tuple(options))


def test_a_network_file_system_is_refused_by_name() -> None:
    with pytest.raises(LogError, match="nfs4 is a network file system"):
        EventLog.open("log", files=On("nfs4"))
    EventLog.open("log", "process", files=On("nfs4")).close()
    EventLog.open("log", files=On("ext4")).close()


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("fuse.something", "as durable as it makes them"),
        ("tmpfs", "tmpfs is memory"),
        ("ext4 rw nobarrier", "mounted with nobarrier"),
        ("overlay volatile", "leaves out all"),
        ("virtiofs", "shared with other machines"),
        ("vfat", "no journal"),
    ],
)
def test_a_file_system_that_may_not_keep_the_promise_is_warned_about_once(
    kind: str, said: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(posix, "_warned", set())
    files = On(kind)
    EventLog.open("log", "process", files=files).close()
    assert caplog.text == ""
    EventLog.open("log", files=files).close()
    EventLog.open("other", files=files).close()
    (record,) = caplog.records
    assert said in record.getMessage() and record.levelname == "WARNING"


def test_the_file_system_of_a_directory_has_a_name(tmp_path: Path) -> None:
    directory = OSFiles().make_directory(str(tmp_path))
    found = OSFiles().mount(directory)
    directory.close()
    if Path("/proc/self/mountinfo").exists():
        assert found.kind and str(tmp_path).startswith(found.path) and found.options
    else:
        assert found.kind == ""


def test_where_the_system_lists_no_mounts_the_file_system_is_not_known(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = OSFiles().make_directory(path)
    with monkeypatch.context() as patched:
        patched.setattr("builtins.open", Mock(side_effect=FileNotFoundError))
        found = directory.mount_id(), OSFiles().mount(directory)
    assert found == ("", Mount(""))
    directory.close()


def test_what_ctrl_c_has_kept_from_being_opened_closes_in_silence() -> None:
    for half_made in (OSFile.__new__(OSFile), OSDirectory.__new__(OSDirectory)):
        half_made.close()


def test_directories_are_moved_and_deleted(files: Files, path: str) -> None:
    directory, root = files.make_directory(path), path.removesuffix("/log")
    directory.open("f", write=True, create=True).pwrite(b"data", 0)
    files.make_directory(f"{path}/inside").open("g", write=True, create=True).close()
    files.make_directory(f"{path}-2").open("h", write=True, create=True).close()
    assert directory.is_linked()
    files.move(path, f"{root}/other")
    assert not directory.is_linked()
    assert files.list_directories(root) == ["log-2", "other"]
    assert files.list_directories(f"{root}/other") == ["inside"]
    assert files.open_directory(f"{root}/other").open("f").pread(9, 0) == b"data"
    with pytest.raises(FileNotFoundError):
        files.move(path, f"{root}/third")
    with pytest.raises(OSError, match="not empty"):
        files.move(f"{root}/other", f"{root}/log-2")
    assert not directory.is_linked()
    assert not files.make_directory(path).identity("f")
    assert not directory.is_linked(), "another directory has its path"
    files.delete(f"{root}/other")
    files.delete(f"{root}/other")
    assert files.list_directories(root) == ["log", "log-2"]
    directory.close()


def test_a_moved_directory_is_made_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.fstat(fd).st_ino))
    here = tmp_path.stat().st_ino
    (tmp_path / "a").mkdir()
    OSFiles().move(str(tmp_path / "a"), str(tmp_path / "b"))
    assert synced == [here]
    monkeypatch.chdir(tmp_path)
    OSFiles().move("b", "c")
    assert synced == [here, here]
