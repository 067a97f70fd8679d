"""The system calls of a process, as strace recorded them, and what they mean for durability.

``recorded`` parses a recording. ``Replica`` makes the same changes to files in memory, knows which
bytes and names were durable at each moment, and notes each broken rule in ``violations``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from eventlog.format.frame import FOOTER, HEADER_SIZE, decode_segment_header, frame_at, payload_of

# All calls that change files, names, descriptors or processes; "?" where not every machine has it.
WATCHED = (
    "?open,openat,close,?mkdir,mkdirat,write,pwrite64,pwritev,ftruncate,fallocate,?truncate,fsync,"
    "fdatasync,sync_file_range,?link,linkat,?unlink,unlinkat,?rename,?renameat,renameat2,"
    "?fork,?vfork,clone,?clone3,?dup2,dup,dup3"
)

_LINE = re.compile(  # what a killed process was about to do ends with "= ?" or nothing at all
    r"(?P<pid>\d+) +(?P<name>\w+)\((?P<args>.*)\) += (?P<result>-?\d+|\?|0x[0-9a-f]+)"
    r"(?:<[^>]*>(?:\(deleted\))?)?(?: (?P<error>E[A-Z]+) \(.*?\))?(?P<injected> \(INJECTED\))?"
)
_BEGUN = re.compile(r"(?P<pid>\d+) +(?P<name>\w+)\((?P<args>.*) <unfinished \.\.\.>")
_RESUMED = re.compile(r"(?P<pid>\d+) +<\.\.\. (?P<name>\w+) resumed>(?P<rest>.*)")


@dataclass(frozen=True, slots=True)
class Call:
    """One system call. ``result`` is -1 when it failed with ``error``, or never came back."""

    line: int
    pid: int
    name: str
    args: tuple[str, ...]
    result: int
    error: str = ""
    injected: bool = False

    def fd(self, index: int = 0) -> int:
        """A descriptor that is an argument."""
        found = re.match(r"-?\d+|AT_FDCWD", self.args[index])
        assert found is not None, self
        return -100 if found[0] == "AT_FDCWD" else int(found[0])

    def directory(self, index: int) -> str:
        """The path of the directory whose descriptor is an argument."""
        found = re.search(r"<(.*)>", self.args[index])
        assert found is not None, self
        return _unescaped(found[1]).decode()

    def data(self, index: int) -> bytes:
        """A string or buffer that is an argument."""
        assert self.args[index].endswith('"'), f"the recording is cut: {self.args[index][-20:]}"
        return _unescaped(self.args[index].strip('"'))

    def path(self, index: int) -> str:
        """The path of which a directory's descriptor and a name are arguments."""
        name = self.data(index + 1).decode()
        return os.path.normpath(os.path.join(self.directory(index), name))  # noqa: PTH118


def _unescaped(text: str) -> bytes:
    parts = text.split("\\x")
    assert not parts[0], f"not recorded as -xx does it: {text[:40]}"
    return bytes.fromhex("".join(parts[1:]))


_CLONES = ("fork", "vfork", "clone", "clone3")
_TOLD_TWICE = ("fsync", "fdatasync", *_CLONES)


def recorded(path: Path) -> Iterator[Call]:
    """The calls in a recording, in order of their ends.

    Some are preceded by a call named ``... begins``: a flush covers what was written before that,
    and a new process may be at work before the call that made it has ended.
    """
    begun: dict[int, str] = {}
    for number, text in enumerate(path.read_text().splitlines(), 1):
        line = text
        resumed = _RESUMED.match(line)
        if resumed is not None:
            line = begun.pop(int(resumed["pid"])) + resumed["rest"]
        began = None if resumed is not None else _BEGUN.match(line)
        if began is not None:
            begun[int(began["pid"])] = line.removesuffix(" <unfinished ...>")
            if began["name"] in _TOLD_TWICE:
                yield _begins(number, began)
            continue
        whole = _LINE.match(line)
        if whole is None:
            assert "---" in line or "+++" in line, f"not understood: {line[:200]}"
            continue
        if resumed is None and whole["name"] in _TOLD_TWICE:
            yield _begins(number, whole)
        result = -1 if whole["result"] == "?" else int(whole["result"], 0)
        yield Call(
            number,
            int(whole["pid"]),
            whole["name"],
            tuple(whole["args"].split(", ")),
            result,
            whole["error"] or "",
            bool(whole["injected"]),
        )


def _begins(number: int, found: re.Match[str]) -> Call:
    name = f"{found['name']} begins"
    return Call(number, int(found["pid"]), name, tuple(found["args"].split(", ")), 0)


# What is known of each byte: durable; written; in a flush that has begun; in one that failed, after
# which the kernel may take it for written and drop it, so that only writing it again helps.
DURABLE, WRITTEN, FLUSHING, LOST = range(4)
_TO_FLUSHING = bytes([DURABLE, FLUSHING, FLUSHING, LOST])
_TO_DURABLE = bytes([DURABLE, WRITTEN, DURABLE, LOST])
_TO_LOST = bytes([DURABLE, LOST, LOST, LOST])
_TO_WRITTEN = bytes([DURABLE, WRITTEN, WRITTEN, LOST])


def _changed(known: bytearray, table: bytes) -> bytearray:
    return known.translate(table.ljust(256, b"\0"))


def _flush(call: Call) -> bytes:
    if call.name.endswith("begins"):
        return _TO_FLUSHING
    if call.result:
        return _TO_LOST if call.error else _TO_WRITTEN  # without an error it was killed before
    return _TO_DURABLE


@dataclass(eq=False, slots=True)
class Inode:
    """A file: its bytes, and what is known of each of them."""

    path: str  # the first name that it had
    content: bytearray = field(default_factory=bytearray)
    known: bytearray = field(default_factory=bytearray)
    acknowledged: int = 0  # the end of what somebody was told of

    @property
    def segment(self) -> bool:
        return ".seg" in self.path

    def end(self) -> int:
        """The end of what was written, without zeros ahead."""
        return len(self.content.rstrip(b"\0"))

    def write(self, data: bytes, offset: int) -> None:
        for array, new in ((self.content, data), (self.known, bytes([WRITTEN]) * len(data))):
            array.extend(bytes(max(0, offset - len(array))))
            array[offset : offset + len(data)] = new

    def truncate(self, size: int) -> None:
        for array in (self.content, self.known):
            del array[size:]
            array.extend(bytes(size - len(array)))

    def frames(self) -> Iterator[tuple[int, int, bool]]:
        """First and last LSN of each frame, and whether all of it is durable."""
        content, offset = bytes(self.content), HEADER_SIZE
        header = decode_segment_header(content)
        while header is not None:
            frame = frame_at(content, offset, header.salt)
            if frame is None or payload_of(content, frame, header.salt) is None:
                return
            if frame.kind != FOOTER:
                safe = not any(self.known[:HEADER_SIZE] + self.known[offset : frame.end])
                yield frame.lsn, frame.lsn + frame.count - 1, safe
            offset = frame.end


class Replica:
    """The files below ``root``, which was empty when the recording began.

    ``on_acknowledged(lsn)`` is called at each ``ACK lsn`` on standard output, after the check.
    """

    def __init__(self, root: Path) -> None:
        self.root = str(root)
        self.names: dict[str, Inode] = {}
        self.durable_names: dict[str, Inode] = {}
        self.directories: set[str] = {self.root}
        self.durable_directories: set[str] = {self.root}
        self.violations: list[str] = []
        self.acknowledged = 0
        self.counts: dict[str, int] = {}
        # By process; threads of one process share the table.
        self.open_files: dict[int, dict[int, Inode | str]] = {}
        self.cloning: list[Call] = []  # those that have begun and not ended
        self.call: Call | None = None

    def play(self, calls: Iterator[Call]) -> Iterator[Call]:
        """Follow the calls of one recording; each is yielded when its effect is there."""
        self.open_files, self.cloning = {}, []
        for call in calls:
            self.call = call
            change = _CHANGES.get(call.name.removesuffix(" begins"))
            if change is not None:
                change(self, call)
                self.counts[call.name] = self.counts.get(call.name, 0) + 1
            yield call

    def check_against_disk(self) -> None:
        """The recording says what is really there, byte for byte."""
        found = {str(p): p.read_bytes() for p in Path(self.root).rglob("*") if p.is_file()}
        assert found.keys() == self.names.keys()
        for path, content in found.items():
            assert content == self.names[path].content, path

    # -- what is durable

    def segments(self, log: str) -> list[tuple[str, Inode]]:
        """The segments of a log, in order."""
        found = ((path, inode) for path, inode in self.names.items() if path.endswith(".seg"))
        return sorted((path, inode) for path, inode in found if os.path.dirname(path) == log)  # noqa: PTH120

    def durable_lsn(self, log: str) -> int:
        """Records up to this one are on the disk, under names that are on the disk."""
        last = 0
        directory = log
        while directory != self.root:
            if directory not in self.durable_directories:
                return 0
            directory = os.path.dirname(directory)  # noqa: PTH120
        for path, inode in self.segments(log):
            if self.durable_names.get(path) is not inode:
                return last
            for first, end, safe in inode.frames():
                if not safe or (last and first > last + 1):  # the log may begin above 1
                    return last
                last = max(last, end)
        return last

    def last_lsn(self, log: str) -> int:
        """The last record that was written."""
        lsns = [end for _, inode in self.segments(log) for _, end, _ in inode.frames()]
        return max(lsns, default=0)

    def logs(self) -> list[str]:
        """The directories that have segments."""
        return sorted({os.path.dirname(p) for p in self.names if p.endswith(".seg")})  # noqa: PTH120

    # -- the calls

    def _table(self, call: Call) -> dict[int, Inode | str]:
        if call.pid not in self.open_files and self.cloning:
            self._inherit(self.cloning[-1], call.pid)
        return self.open_files.setdefault(call.pid, {})

    def _inherit(self, clone: Call, pid: int) -> None:
        table = self.open_files.setdefault(clone.pid, {})
        shared = any("CLONE_FILES" in arg for arg in clone.args)
        self.open_files[pid] = table if shared else dict(table)

    def inode(self, call: Call) -> Inode | None:
        """The file whose descriptor is the call's first argument; None for others."""
        found = self._table(call).get(call.fd())
        return found if isinstance(found, Inode) else None

    def _inside(self, path: str) -> bool:
        return path.startswith(self.root + os.sep)

    def _violated(self, what: str) -> None:
        assert self.call is not None
        self.violations.append(f"line {self.call.line}: {what}")

    def _open(self, call: Call) -> None:
        table = self._table(call)
        if call.result < 0:
            return
        table.pop(call.result, None)
        path = call.path(0)
        if path in self.directories:
            table[call.result] = path
        elif self._inside(path):
            if path not in self.names:
                assert "O_CREAT" in call.args[2], f"{path} was there before the recording"
                self.names[path] = Inode(path)
            if "O_TRUNC" in call.args[2]:
                self.names[path].truncate(0)
            table[call.result] = self.names[path]

    def _close(self, call: Call) -> None:
        self._table(call).pop(call.fd(), None)

    def _make_directory(self, call: Call) -> None:
        path = call.data(0).decode() if call.name == "mkdir" else call.path(0)
        if not call.result and self._inside(path):
            self.directories.add(os.path.normpath(path))

    def _clone(self, call: Call) -> None:
        if call.name.endswith("begins"):
            self.cloning.append(call)
            return
        self.cloning = [clone for clone in self.cloning if clone.pid != call.pid]
        if call.result > 0 and call.result not in self.open_files:
            self._inherit(call, call.result)

    def _write(self, call: Call) -> None:
        inode = self.inode(call)
        if inode is not None and call.result > 0:  # opened for appending
            inode.write(call.data(1)[: call.result], len(inode.content))
            if inode.path.endswith("effects"):
                self._effect()
        elif call.fd() == 1 and call.result > 0:
            for line in call.data(1).decode().splitlines():
                if line.startswith("ACK "):
                    self._acknowledge(int(line.split()[1]))
                elif line.startswith("RESULT"):
                    self._effect()

    def _pwrite(self, call: Call) -> None:
        inode = self.inode(call)
        if inode is None or call.result <= 0:
            return
        data, offset = call.data(1)[: call.result], int(call.args[3])
        if inode.segment:
            # Recovery may write again, unchanged, what was not known to be durable.
            there = inode.content[offset : min(inode.end(), offset + len(data))]
            if there != data[: len(there)]:
                self._violated(f"{inode.path}: other bytes over what was written, at {offset}")
        elif inode.path.endswith("/MARK"):
            self._marked(os.path.dirname(inode.path), data)  # noqa: PTH120
        inode.write(data, offset)

    def _truncate(self, call: Call) -> None:
        inode = self.inode(call)
        if inode is not None and not call.result:
            size = int(call.args[1])
            if inode.segment and size < inode.acknowledged:
                self._violated(f"{inode.path}: cut at {size}, acknowledged to {inode.acknowledged}")
            inode.truncate(size)

    def _sync(self, call: Call) -> None:
        found = self._table(call).get(call.fd())
        if isinstance(found, Inode):
            found.known = _changed(found.known, _flush(call))
        elif found is not None and not call.result and not call.name.endswith("begins"):
            self._sync_directory(found)

    def _sync_directory(self, directory: str) -> None:
        for names in (self.names, self.durable_names):
            for path in [p for p in names if os.path.dirname(p) == directory]:  # noqa: PTH120
                if path in self.names:
                    self.durable_names[path] = self.names[path]
                else:
                    del self.durable_names[path]
        below = {p for p in self.directories if os.path.dirname(p) == directory}  # noqa: PTH120
        self.durable_directories |= below

    def _link(self, call: Call) -> None:
        if call.result:
            return
        old, new = call.path(0), call.path(2)
        inode = self.names[old]
        if any(inode.known):
            self._violated(f"{new} gets its name before its content is durable")
        if call.name.startswith("rename"):
            del self.names[old]
        self.names[new] = inode

    def _unlink(self, call: Call) -> None:
        if call.result or not self._inside(call.path(0)):
            return
        removed = self.names.pop(call.path(0))
        if call.path(0).endswith(".seg"):
            self._check_removed(removed, call.path(0))
        elif not call.path(0).endswith(".new"):
            self._violated(f"{call.path(0)} is removed")

    def _check_removed(self, removed: Inode, path: str) -> None:
        """A segment goes only when a later one says so, and that one is durable with its name."""
        last = max((end for _, end, _ in removed.frames()), default=0)
        log = os.path.dirname(path)  # noqa: PTH120
        for later, inode in self.segments(log):
            header = decode_segment_header(inode.content)
            safe = self.durable_names.get(later) is inode and not any(inode.known[:HEADER_SIZE])
            if later > path and header is not None and safe and header.oldest_lsn > last:
                return
        self._violated(f"{path} is removed before a durable segment says that LSN {last} may go")

    def _not_modelled(self, call: Call) -> None:
        if call.result >= 0 and self._table(call).get(call.fd()) is not None:
            raise AssertionError(f"not modelled: {call}")

    # -- the rules

    def _acknowledge(self, lsn: int) -> None:
        """What is acknowledged is on the disk."""
        self.acknowledged = max(self.acknowledged, lsn)
        self.counts["acknowledged"] = self.counts.get("acknowledged", 0) + 1
        durable = max((self.durable_lsn(log) for log in self.logs()), default=0)
        if durable < lsn:
            self._violated(f"LSN {lsn} is acknowledged, durable is LSN {durable}")
        for inode in self.names.values():
            if inode.segment:
                inode.acknowledged = inode.end()

    def _effect(self) -> None:
        """A side effect happens, or a result is handed on: all that led to it is on the disk."""
        self.counts["effects"] = self.counts.get("effects", 0) + 1
        for log in self.logs():
            if self.durable_lsn(log) < self.last_lsn(log):
                self._violated(
                    f"a side effect while LSN {self.last_lsn(log)} is written and LSN "
                    f"{self.durable_lsn(log)} durable"
                )

    def _marked(self, log: str, data: bytes) -> None:
        """The mark never leads."""
        durable = int.from_bytes(data[32:40], "little")
        if durable > self.durable_lsn(log):
            self._violated(f"MARK says LSN {durable}, durable is LSN {self.durable_lsn(log)}")


_CHANGES: dict[str, Callable[[Replica, Call], None]] = {
    "openat": Replica._open,
    "close": Replica._close,
    "mkdir": Replica._make_directory,
    "mkdirat": Replica._make_directory,
    "fork": Replica._clone,
    "vfork": Replica._clone,
    "clone": Replica._clone,
    "clone3": Replica._clone,
    "write": Replica._write,
    "pwrite64": Replica._pwrite,
    "ftruncate": Replica._truncate,
    "fsync": Replica._sync,
    "fdatasync": Replica._sync,
    "linkat": Replica._link,
    "renameat": Replica._link,
    "renameat2": Replica._link,
    "unlinkat": Replica._unlink,
    "pwritev": Replica._not_modelled,
    "fallocate": Replica._not_modelled,
    "sync_file_range": Replica._not_modelled,
    "dup": Replica._not_modelled,
    "dup2": Replica._not_modelled,
    "dup3": Replica._not_modelled,
}
