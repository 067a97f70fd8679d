"""Reports to a crash test what an agent's process is about to do, and waits for permission.

It runs inside the agent's process, as its ``sitecustomize``. It is a single file that needs only
Python, because the agent may run in an environment of its own. ``sys.setprofile`` reports which
functions are entered and left. So a function is seen however it is decorated or imported, also a
function of the agent's script or of a library.

Each moment is one line of JSON to the socket ``$CRASHTEST_SOCKET``, and one byte in answer. A
process that is to be killed gets no answer, so that it dies exactly there.
"""

from __future__ import annotations

import json
import os
import re
import socket
import sys
import threading
from opcode import opname
from pathlib import Path
from types import FrameType
from typing import Any

TEXT_SIZE_MAX = 200  # of an argument; the rest is replaced by a hash
NO_SUPERVISOR = 70  # exit code of a process whose crash test is gone: it must do nothing more

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
# Functions that write to the disk, or its buffer: methods of files, functions of os, sqlite3.
_DISK_CALLS = frozenset(
    "open write writelines flush close truncate __exit__ pwrite writev fsync fdatasync rename "
    "replace unlink remove ftruncate mkdir rmdir link symlink execute executemany executescript "
    "commit".split()
)
_RECORDS = (
    "eventlog.write.log:EventLog.append",
    "eventlog.write.log:EventLog.append_batch",
    "eventlog.write.log:EventLog.append_snapshot",
)
_PARKED = "recovery.errors:InDoubtError.__init__"


class Probe:
    """The functions to watch, and the connection to the crash test."""

    def __init__(self, address: str, tools: list[str], disk: bool) -> None:
        self._address, self._tools, self._disk = address, frozenset(tools), disk
        self._watched = self._tools.union(_RECORDS, [_PARKED])
        self._names = {name.rpartition(":")[2].rpartition(".")[2] for name in self._watched}
        self._inside: dict[int, str] = {}  # frames of tools, and of records being written
        self._opened = threading.local()  # the file that this thread is about to open for writing
        self._line = threading.local()

    def install(self) -> None:
        """Watch all threads from here on."""
        if self._disk:
            sys.addaudithook(self._audit)
        threading.setprofile(self._profile)
        sys.setprofile(self._profile)

    def _profile(self, frame: FrameType, event: str, arg: Any) -> None:
        if event == "call":
            if frame.f_code.co_name in self._names and _begins(frame):
                self._enter(frame)
        elif event == "return":
            if id(frame) in self._inside and not _suspends(frame):
                self._leave(frame)
        elif event == "c_return" and self._disk and arg.__name__ in _DISK_CALLS:
            self._disk_call(arg)

    def _enter(self, frame: FrameType) -> None:
        name = self._watched_name(frame)
        if name is None:
            return
        if name == _PARKED:
            calls = [call.tool for call in frame.f_locals["calls"]]
            self._tell({"at": "parked", "name": ", ".join(calls)})
            return
        self._inside[id(frame)] = name
        if name in self._tools:
            self._tell({"at": "call", "name": name, "id": self._id(frame), "args": _args(frame)})

    def _leave(self, frame: FrameType) -> None:
        name = self._inside.pop(id(frame))
        if name in self._tools:
            self._tell({"at": "return", "name": name, "id": self._id(frame)})
        else:
            self._tell({"at": "record", "name": "record"})

    def _watched_name(self, frame: FrameType) -> str | None:
        """Which of the watched functions this is a call of."""
        code, module = frame.f_code, str(frame.f_globals.get("__name__", ""))
        qualname = getattr(code, "co_qualname", code.co_name)
        names = [f"{module}:{qualname}"]
        if module == "__main__":  # the script, by the name under which others would import it
            spec = frame.f_globals.get("__spec__")
            names += [f"{spec.name}:{qualname}"] if spec else []
            names += [f"{Path(code.co_filename).stem}:{qualname}"]
        return next((name for name in names if name in self._watched), None)

    def _audit(self, event: str, args: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR):
            self._opened.path = args[0]

    def _disk_call(self, function: Any) -> None:
        name, owner = function.__name__, getattr(function, "__self__", None)
        if name == "open":
            if self._opened.__dict__.pop("path", None) is None:
                return  # for reading
        elif not _is_disk(function, owner):
            return
        self._tell({"at": "disk", "name": name})

    def _id(self, frame: FrameType) -> str:
        return f"{os.getpid()}.{id(frame)}"

    def _tell(self, what: dict[str, Any]) -> None:
        """Report an event; returns when it is permitted, and only then."""
        try:
            if getattr(self._line, "pid", 0) != os.getpid():  # another thread, or a forked process
                self._line.socket = socket.socket(socket.AF_UNIX)
                self._line.socket.connect(self._address)
                self._line.pid = os.getpid()
            said = {"life": os.environ.get("CRASHTEST_LIFE"), **what}
            self._line.socket.sendall(json.dumps(said).encode() + b"\n")
            answer = self._line.socket.recv(1)
        except OSError:
            answer = b""
        if not answer:
            os._exit(NO_SUPERVISOR)


def _is_disk(function: Any, owner: Any) -> bool:
    kind = type(owner)
    if kind.__module__ in ("_io", "io"):
        try:
            # A closed file still knows its mode; one in memory has none.
            mode = str(getattr(owner, "mode", ""))
            return any(c in mode for c in "wax+") and (owner.closed or owner.fileno() > 2)
        except (OSError, ValueError):
            return False
    return kind.__module__ == "sqlite3" or getattr(function, "__module__", "") == "posix"


def _begins(frame: FrameType) -> bool:
    """Whether this is the first step of a call: a coroutine is entered again at each await."""
    name, resumed = _last(frame)
    return frame.f_lasti < 0 or (name == "RESUME" and not resumed)


def _suspends(frame: FrameType) -> bool:
    """Whether it is left by a yield, or an await: since Python 3.13 the last instruction is where
    it will resume."""
    name, resumed = _last(frame)
    return name in ("YIELD_VALUE", "YIELD_FROM") or (name == "RESUME" and resumed)


def _last(frame: FrameType) -> tuple[str, bool]:
    """The name of the last instruction; of a RESUME, whether it is the one behind a yield."""
    code, last = frame.f_code.co_code, frame.f_lasti
    return opname[code[last]], code[last + 1] & 3 != 0


def _args(frame: FrameType) -> dict[str, str]:
    """The arguments as text, without ``self``."""
    code = frame.f_code
    count = code.co_argcount + code.co_kwonlyargcount
    count += bool(code.co_flags & 0x04) + bool(code.co_flags & 0x08)  # *args and **kwargs
    names = [name for name in code.co_varnames[:count] if name not in ("self", "cls")]
    return {name: text(frame.f_locals[name]) for name in names if name in frame.f_locals}


def text(value: Any) -> str:
    """A value in a form that is the same in every process."""
    try:
        whole = json.dumps(value, sort_keys=True, ensure_ascii=False, default=_repr)
    except (TypeError, ValueError, RecursionError):
        whole = _repr(value)
    if len(whole) <= TEXT_SIZE_MAX:
        return whole
    import hashlib  # noqa: PLC0415 - agents that do not need it do not wait for it

    digest = hashlib.sha256(whole.encode(errors="replace")).hexdigest()[:12]
    return f"{whole[: TEXT_SIZE_MAX - 30]}… ({len(whole)} characters, {digest})"


def _repr(value: Any) -> str:
    try:
        return _ADDRESS.sub("", repr(value))
    except Exception:
        return f"<{type(value).__name__}>"


def _run_other_sitecustomize() -> None:
    """Run the sitecustomize that this file hides: some systems and tools have one."""
    here = Path(__file__).resolve().parent
    for folder in sys.path:
        path = Path(folder, "sitecustomize.py")
        if path.is_file() and path.resolve().parent != here:
            import runpy  # noqa: PLC0415 - as above

            runpy.run_path(str(path), run_name="sitecustomize")
            return


if __name__ == "sitecustomize":
    _run_other_sitecustomize()
if __name__ == "sitecustomize" and "CRASHTEST_PROBE" in os.environ:
    _wanted = json.loads(os.environ["CRASHTEST_PROBE"])
    Probe(os.environ["CRASHTEST_SOCKET"], _wanted["tools"], _wanted["disk"]).install()
