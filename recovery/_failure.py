"""Exceptions as records: enough to raise them again. Pure."""

from __future__ import annotations

import traceback
from typing import Any

from eventlog import Packed, RefusedValueError
from recovery._events import CallFailed
from recovery._values import pack

ERROR_SIZE_MAX = 64 << 10  # an exception with larger arguments becomes a ToolError
TEXT_SIZE_MAX = 16 << 10  # of a recorded message or traceback


def failure(call: int, exc: Exception) -> CallFailed:
    """The event for an exception."""
    kind = type(exc)
    given: tuple[Any, ...] = exc.args
    if isinstance(exc, RefusedValueError):
        given = exc.value_path, exc.reason
    elif isinstance(exc, OSError) and exc.filename is not None:
        given = exc.errno, exc.strerror, exc.filename, None, exc.filename2
        given = given if exc.filename2 is not None else given[:3]
    args: Packed | None
    try:
        args = pack(list(given), "args")
    except RefusedValueError:
        args = None
    if args is not None and len(args) > ERROR_SIZE_MAX:
        args = None
    try:
        message = str(exc)
    except Exception as error:  # of the user's __str__
        message = f"<no message: {kind.__name__}.__str__ raised {type(error).__name__}>"
    text = "".join(traceback.format_exception(exc))
    if len(text) > TEXT_SIZE_MAX:  # where it was raised is in front, what it says is at the end
        half = TEXT_SIZE_MAX // 2 - 5
        text = f"{text[:half]} ... {text[-half:]}"
    return CallFailed(call, f"{kind.__module__}.{kind.__qualname__}", clean(message), args,
                      clean(text))  # fmt: skip


def clean(text: str) -> str:
    """Text that UTF-8 can hold, of bounded size."""
    return text[:TEXT_SIZE_MAX].encode("utf-8", "replace").decode()
