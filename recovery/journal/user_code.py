"""Tells the user's code from Python's and the library's, and formats tracebacks by it. Pure."""

from __future__ import annotations

import functools
import traceback
from collections.abc import Iterator
from types import TracebackType

_STDLIB = traceback.__file__.rpartition("/")[0] + "/"
_INSTALLED = ("site-packages", "dist-packages")
_HERE = __file__.rpartition("/recovery/")[0]
_OURS = (f"{_HERE}/recovery/", f"{_HERE}/eventlog/")


@functools.lru_cache(maxsize=4096)
def is_the_users(file: str) -> bool:
    """Whether a file of code is not Python's, an installed package's, or this library's."""
    return not (_is_ours(file) or _is_pythons(file) or any(name in file for name in _INSTALLED))


def _is_ours(file: str) -> bool:
    return file.startswith(_OURS)


def _is_pythons(file: str) -> bool:
    return file.startswith(("<frozen", _STDLIB)) and not any(name in file for name in _INSTALLED)


def place_of(raised: TracebackType | None) -> str:
    """File, line and function of the user's code that raised, or else of a package; "" if all of
    it is this library's."""
    found, is_found = "", False
    while raised is not None:
        code = raised.tb_frame.f_code
        is_users = is_the_users(code.co_filename)
        if is_users or not (is_found or _is_ours(code.co_filename)):
            found = f"{code.co_filename}:{raised.tb_lineno} in {code.co_qualname}"
        is_found |= is_users
        raised = raised.tb_next
    return found


def traceback_of(exc: BaseException) -> str:
    """The traceback of an exception, without the frames of this library that call the user's code.

    If the library itself raised one of Python's exceptions, the traceback ends in that line.
    """
    told = traceback.TracebackException(type(exc), exc, exc.__traceback__)
    _trim(told, exc, set())
    return "".join(told.format())


def _trim(
    told: traceback.TracebackException | None, exc: BaseException | None, seen: set[int]
) -> None:
    if told is None or exc is None or id(exc) in seen:
        return
    seen.add(id(exc))
    told.stack = traceback.StackSummary.from_list(list(_kept(told.stack, exc)))
    _trim(told.__cause__, exc.__cause__, seen)
    _trim(told.__context__, exc.__context__, seen)
    if isinstance(exc, BaseExceptionGroup):
        for i, part in enumerate(told.exceptions or ()):
            _trim(part, exc.exceptions[i], seen)


def _kept(stack: traceback.StackSummary, exc: BaseException) -> Iterator[traceback.FrameSummary]:
    """The frames that are shown: none of this library, nor of what it calls the user's code by."""
    between: list[traceback.FrameSummary] = []  # Python's frames, called by the library
    is_below_ours = False
    for frame in stack:
        if _is_ours(frame.filename):
            is_below_ours, between = True, []
        elif is_below_ours and _is_pythons(frame.filename):
            between.append(frame)
        else:
            yield frame
            is_below_ours, between = False, []
    yield from between
    if stack and _is_ours(stack[-1].filename) and type(exc).__module__ == "builtins":
        last = stack[-1]
        if last.name != "serve":  # which raises the recorded failure of a call
            yield traceback.FrameSummary(last.filename, last.lineno, last.name, line="")
