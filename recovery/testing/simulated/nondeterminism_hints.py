"""Notes nondeterministic calls of an agent, and its unrecorded calls.

The interpreter's profiling hook sees them in one run: no code is changed for it.
"""

from __future__ import annotations

import random
import secrets
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date, datetime
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from recovery.agent.recoverable import RecoverableAgent
from recovery.agent_code.agent_source import LostLocals, locals_lost_by
from recovery.declare.scope import current_call
from recovery.testing.simulated.user_code import at, is_users

_RECORDS = ("perform_async", "perform_sync")  # all recorded calls go through these
_INSTANCE = getattr(random, "_inst", None)  # behind the functions of module random
_BUILTIN = {
    "time": ("time.time()", "run.now()"),
    "time_ns": ("time.time_ns()", "run.now()"),
    "now": ("datetime.now()", "run.now()"),
    "utcnow": ("datetime.utcnow()", "run.now()"),
    "today": ("today()", "run.now()"),
    "urandom": ("os.urandom()", "run.random()"),
    "getrandbits": ("random.getrandbits()", "run.random()"),
    "random": ("random.random()", "run.random()"),
}


def _python_functions() -> dict[CodeType, tuple[str, str]]:
    found = {}
    methods = "randint randrange choice choices shuffle sample uniform gauss".split()
    for module, names, instead in (
        (uuid, ["uuid1", "uuid4"], "run.uuid()"),
        (random.Random, methods, "run.random()"),
        (secrets, ["token_hex", "token_bytes", "token_urlsafe", "randbelow"], "run.random()"),
    ):
        for name in names:
            code = getattr(getattr(module, name, None), "__code__", None)
            if code is not None:
                label = "random" if module is random.Random else module.__name__
                found[code] = (f"{label}.{name}()", instead)
    for name in ("time", "time_ns"):  # replaced by virtual time
        code = getattr(getattr(time, name), "__code__", None)
        if code is not None:
            found[code] = _BUILTIN[name]
    return found


class Hints:
    """What an agent does outside of recorded calls, in one run."""

    def __init__(self) -> None:
        self.changing: dict[str, None] = {}  # sentences
        self.lost: LostLocals | None = None
        self._functions: dict[str, None] = {}
        self._parts: set[str] = set()  # of the agent
        self._python: dict[int, tuple[str, str]] = {}

    @contextmanager
    def looking(self, agent: RecoverableAgent) -> Iterator[None]:
        """Watch everything that the present thread does, and read the agent's source."""
        if agent.settings.check_locals and agent.settings.checkpoint_every_n is not None:
            self.lost = locals_lost_by(agent.agent_fn)
        self._python = {id(code): found for code, found in _python_functions().items()}
        before = sys.getprofile()
        sys.setprofile(self._profile)
        try:
            yield
        finally:
            sys.setprofile(before)

    def _profile(self, frame: FrameType, event: str, arg: Any) -> None:
        if event == "c_call":
            found, caller = _builtin(arg), frame
        elif event == "call" and frame.f_back is not None:
            found, caller = self._python.get(id(frame.f_code), ("", "")), frame.f_back
            if found[0] and "self" in frame.f_locals and frame.f_locals["self"] is not _INSTANCE:
                return  # a generator of the agent's own, which it may have seeded
        else:
            return
        if not found[0]:
            if event == "call" and frame.f_code.co_name in _RECORDS and not is_users(frame):
                self._note_callers(caller)
            elif event == "call" and is_users(frame) and is_users(caller) and _plain(frame):
                self._note_function(frame)
        elif is_users(caller) and current_call() is None:
            self.changing[f"{found[0]} in {at(caller)}: use {found[1]}"] = None

    def _note_function(self, frame: FrameType) -> None:
        if current_call() is None:
            self._functions[_named(frame)] = None

    def _note_callers(self, frame: FrameType | None) -> None:
        """A function that makes recorded calls is a part of the agent, and is replayed."""
        while frame is not None:
            if is_users(frame):
                self._parts.add(_named(frame))
            frame = frame.f_back

    @property
    def unrecorded(self) -> list[str]:
        """Functions that were called outside of recorded calls, and made none themselves."""
        return [name for name in self._functions if name not in self._parts]


def _named(frame: FrameType) -> str:
    return f"{frame.f_code.co_name} ({Path(frame.f_code.co_filename).name})"


def _plain(frame: FrameType) -> bool:
    return not frame.f_code.co_name.startswith(("<", "__"))


def _builtin(function: Any) -> tuple[str, str]:
    name, owner = getattr(function, "__name__", ""), getattr(function, "__self__", None)
    if name not in _BUILTIN:
        return "", ""
    if name in ("now", "utcnow", "today"):
        known = isinstance(owner, type) and issubclass(owner, date | datetime)
    elif name in ("random", "getrandbits"):
        known = owner is _INSTANCE
    else:
        known = owner in (time, sys.modules.get("posix"))
    return _BUILTIN[name] if known else ("", "")
