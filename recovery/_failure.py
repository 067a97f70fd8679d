"""Exceptions as records: enough to raise them again. Pure."""

from __future__ import annotations

import traceback
from contextlib import suppress
from typing import Any

from eventlog import Packed, RefusedValueError
from recovery._events import CallFailed
from recovery._redact import NO_SECRETS, Secrets
from recovery._values import pack

ERROR_SIZE_MAX = 64 << 10  # an exception with larger arguments becomes a ToolError
TEXT_SIZE_MAX = 16 << 10  # of a recorded message or traceback


def failure(call: int, exc: Exception, secrets: Secrets = NO_SECRETS) -> CallFailed:
    """The event for an exception, without any secret of the run that its texts have."""
    kind = type(exc)
    given: tuple[Any, ...] = exc.args
    if isinstance(exc, RefusedValueError):
        given = exc.value_path, exc.reason
    elif isinstance(exc, OSError) and exc.filename is not None:
        given = exc.errno, exc.strerror, exc.filename, None, exc.filename2
        given = given if exc.filename2 is not None else given[:3]
    args: Packed | None
    message = message_of(exc, secrets)
    kept = secrets.scrubbed(given)
    changed = kept is not None and any(a is not b for a, b in zip(kept, given, strict=True))
    if kept is not None and changed and kind.__module__ == "builtins":
        with suppress(Exception):  # it quotes its arguments, and may do so in another way now
            message = message_of(kind(*kept), secrets)
    try:
        args = None if kept is None else pack(kept, "args")
    except RefusedValueError:
        args = None
    if args is not None and len(args) > ERROR_SIZE_MAX:
        args = None
    text = secrets.scrub("".join(traceback.format_exception(exc)))
    if len(text) > TEXT_SIZE_MAX:  # where it was raised is in front, what it says is at the end
        half = TEXT_SIZE_MAX // 2 - 5
        text = f"{text[:half]} ... {text[-half:]}"
    return CallFailed(call, f"{kind.__module__}.{kind.__qualname__}", clean(message), args,
                      clean(text))  # fmt: skip


def message_of(exc: BaseException, secrets: Secrets) -> str:
    """What the exception says."""
    try:
        return secrets.scrub(str(exc))
    except Exception as error:  # of the user's __str__
        return f"<no message: {type(exc).__name__}.__str__ raised {type(error).__name__}>"


def clean(text: str) -> str:
    """Text that UTF-8 can hold, of bounded size."""
    return text[:TEXT_SIZE_MAX].encode("utf-8", "replace").decode()
