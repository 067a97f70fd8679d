"""What the kernel is asked for, and in which order."""

from __future__ import annotations

import errno
import fcntl
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from eventlog import EventLog
from eventlog.errors import UnsupportedFormatError, WriterFailedError
from eventlog.files.lock import LOCK_NAME
from eventlog.files.posix import OSFiles

linux = pytest.mark.skipif(sys.platform != "linux", reason="about the system calls of Linux")


class Kernel:
    """The changing system calls that are made on files of a log, in order: (verb, name)."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[tuple[str, str]] = []
        self._names: dict[int, str] = {}
        self._real = {
            verb: getattr(os, verb)
            for verb in ("open", "pwrite", "fdatasync", "fsync", "ftruncate", "link")
        }
        for verb in ("pwrite", "fdatasync", "fsync", "ftruncate"):
            monkeypatch.setattr(os, verb, self._noting(verb))
        monkeypatch.setattr(os, "open", self._open)
        monkeypatch.setattr(os, "link", self._link)

    def _open(self, path: str, *args: Any, **kwargs: Any) -> int:
        fd: int = self._real["open"](path, *args, **kwargs)
        self._names[fd] = self._short(path)
        return fd

    def _link(self, source: str, target: str, **kwargs: Any) -> None:
        self.calls.append(("link", target))
        self._real["link"](source, target, **kwargs)
        self._names = {
            fd: target if name == self._short(source) else name for fd, name in self._names.items()
        }

    def _noting(self, verb: str) -> Callable[..., Any]:
        def call(fd: int, *args: Any) -> Any:
            self.calls.append((verb, self._names[fd]))
            return self._real[verb](fd, *args)

        return call

    def _short(self, path: str) -> str:
        name = Path(path).name
        return f"{name.partition('.')[0]}.new" if name.endswith(".new") else name


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    return Kernel(monkeypatch)


@linux
def test_a_new_segment_is_durable_before_it_has_a_name_and_with_it_before_it_is_used(
    tmp_path: Path, kernel: Kernel
) -> None:
    path = tmp_path / "log"
    with EventLog.open(path, segment_size=400) as log:
        for number in ("00000001", "00000002"):
            kernel.calls.clear()
            log.append("event", "x" * 300)
            made = [call for call in kernel.calls if call[1] not in ("MARK", LOCK_NAME)]
            begin = made.index(("pwrite", f"{number}.new"))
            assert made[begin:] == [
                ("pwrite", f"{number}.new"),
                ("fdatasync", f"{number}.new"),
                ("link", f"{number}.seg"),
                ("fsync", "log"),
                ("pwrite", f"{number}.seg"),
            ]


@linux
def test_a_commit_is_a_write_then_a_flush_then_the_mark(tmp_path: Path, kernel: Kernel) -> None:
    with EventLog.open(tmp_path / "log") as log:
        log.append("event", 1)
        log.commit()
        for _ in range(2):
            kernel.calls.clear()
            log.append("event", 2)
            assert kernel.calls == [("pwrite", "00000001.seg")]
            log.commit()
            assert kernel.calls[1:] == [("fdatasync", "00000001.seg"), ("pwrite", "MARK")]


@linux
def test_a_flush_that_failed_is_not_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel may have dropped the pages: it would report success."""
    tried = []
    real = os.fdatasync

    def fdatasync(fd: int) -> None:
        tried.append(fd)
        if len(tried) == 1:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(fd)

    log = EventLog.open(tmp_path / "log")
    log.append("event", 1)
    monkeypatch.setattr(os, "fdatasync", fdatasync)
    with pytest.raises(OSError) as caught:
        log.commit()
    assert caught.value.errno == errno.EIO
    with pytest.raises(WriterFailedError):
        log.commit()
    log.close()
    assert len(tried) == 1
    assert log.durable_lsn == 0


def test_a_short_write_of_the_kernel_is_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: real(fd, bytes(data)[:30], at))
    log = EventLog.open(tmp_path / "log")
    log.append("event", "x" * 500)
    log.commit()
    with EventLog.read(tmp_path / "log") as reader:
        assert [record.body for record in reader.records()] == ["x" * 500]
    log.close()


def test_a_short_read_of_the_kernel_is_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with EventLog.open(tmp_path / "log") as log:
        log.append("event", "x" * 500)
    real = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, size, at: real(fd, min(size, 30), at))
    with EventLog.open(tmp_path / "log") as log:
        assert (log.report.clean, log.report.damaged, log.last_lsn) == (True, (), 1)
        assert [record.body for record in log.records()] == ["x" * 500]


def test_without_hard_links_a_name_is_not_taken_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def link(*args: Any, **kwargs: Any) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", link)
    directory = OSFiles().make_directory(str(tmp_path / "log"))
    for content in (b"first", b"second"):
        file = directory.open("f.new", write=True, create=True)
        file.pwrite(content, 0)
        file.close()
        if content == b"first":
            directory.publish("f.new", "f")
    with pytest.raises(FileExistsError):
        directory.publish("f.new", "f")
    assert (tmp_path / "log" / "f").read_bytes() == b"first"
    directory.close()


@linux
def test_a_pipe_in_a_log_stops_nobody(tmp_path: Path) -> None:
    with EventLog.open(tmp_path / "log") as log:
        log.append("event", 1)
    pipe = tmp_path / "log" / "00000001.seg"
    pipe.unlink()
    os.mkfifo(pipe)
    told: list[str] = []

    def read() -> None:
        try:
            with EventLog.read(tmp_path / "log") as reader:
                list(reader.records())
        except UnsupportedFormatError as exc:
            told.append(str(exc))

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    thread.join(10)
    hung = thread.is_alive()
    os.close(os.open(pipe, os.O_RDWR | os.O_NONBLOCK))  # the other end: whoever waits goes on
    thread.join()
    assert not hung, "reading waits for the other end of a pipe"
    assert "is not a regular file" in told[0]


@linux
def test_a_lock_that_fails_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = fcntl.fcntl

    def no_locks(fd: int, command: int, *args: Any) -> Any:
        if command == fcntl.F_OFD_SETLK:
            raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))
        return real(fd, command, *args)

    monkeypatch.setattr(fcntl, "fcntl", no_locks)
    with pytest.raises(OSError) as caught:
        EventLog.open(tmp_path / "log")
    assert caught.value.errno == errno.ENOLCK


def test_closing_twice_closes_nothing_else(tmp_path: Path) -> None:
    directory = OSFiles().make_directory(str(tmp_path / "log"))
    file = directory.open("f", write=True, create=True)
    file.close()
    other = os.open(tmp_path, os.O_RDONLY)  # has the number now
    file.close()
    os.fstat(other)
    os.close(other)
    directory.close()
