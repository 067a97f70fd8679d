"""Records exceptions, with enough to raise them again. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from operator import is_not
from types import MemberDescriptorType
from typing import Any

from eventlog import Packed, RefusedValueError
from eventlog.format.record import kind_name
from recovery.journal.events import CallFailed
from recovery.journal.redaction import NO_SECRETS, Secrets
from recovery.journal.user_code import traceback_of
from recovery.values.pack import pack, pack_list, pack_map
from recovery.values.type_names import type_name

ERROR_SIZE_MAX = 64 << 10  # an exception with larger arguments becomes a ToolError
TEXT_SIZE_MAX = 16 << 10  # of a recorded message or traceback
GROUP_SIZE_MAX = 64  # a larger group of exceptions becomes a ToolError
DEPTH_MAX = 4  # of groups in groups, and of causes of causes
LEFT_OUT_MAX = 20  # names of attributes that are not recorded
# Builtin types with useful attributes besides the arguments.
_TELLING = {ImportError: ("name", "path"), AttributeError: ("name",), NameError: ("name",)}


def failure(
    call: int,
    exc: Exception,
    secrets: Secrets = NO_SECRETS,
) -> CallFailed:
    """The event for an exception, without secrets of the run in its texts."""
    text = secrets.scrub(traceback_of(exc))
    if len(text) > TEXT_SIZE_MAX:  # the beginning says where it was raised, the end what it says
        half = TEXT_SIZE_MAX // 2 - 5
        text = f"{text[:half]} ... {text[-half:]}"
    return CallFailed(call, traceback=clean(text), **_parts(exc, secrets, 0))


def _parts(exc: BaseException, secrets: Secrets, depth: int) -> dict[str, Any]:
    """The record of an exception, except the traceback."""
    kind = type(exc)
    bases = [
        type_name(one)
        for one in kind.__mro__[1:]
        if one is not Exception and issubclass(one, Exception)
    ]
    attributes, left_out = _attributes(exc, secrets)
    message, args = _message_and_args(exc, secrets)
    cause = None
    if exc.__cause__ is not None:
        cause = _causes([exc.__cause__], secrets, depth + 1)
        if cause is None:
            left_out = [f".__cause__ ({kind_name(exc.__cause__)})", *left_out]
    parts: dict[str, Any] = {
        "type": type_name(kind),
        "message": clean(message),
        "args": args,
        "bases": bases or None,
        "attributes": attributes,
        "left_out": left_out or None,
        "cause": cause,
    }
    if isinstance(exc, ExceptionGroup):
        parts["group"] = _causes(exc.exceptions, secrets, depth + 1)
        parts["args"] = _small([secrets.scrub(exc.message)])
    return parts


def _causes(excs: Sequence[BaseException], secrets: Secrets, depth: int) -> Packed | None:
    """Exceptions inside another one, each as a map of its record; None if they are too many, too
    deep or too large."""
    if len(excs) > GROUP_SIZE_MAX or depth > DEPTH_MAX:
        return None
    held = [
        pack_map(
            {
                name: part if type(part) is Packed else pack(part, name)
                for name, part in _parts(one, secrets, depth).items()
                if part is not None
            }
        )
        for one in excs
    ]
    group = pack_list(held)
    return group if len(group) <= ERROR_SIZE_MAX else None


def _message_and_args(exc: BaseException, secrets: Secrets) -> tuple[str, Packed | None]:
    """Message and arguments of an exception; None for arguments that cannot be recorded."""
    given: tuple[Any, ...] = exc.args
    if isinstance(exc, RefusedValueError):
        given = exc.value_path, exc.reason
    elif isinstance(exc, OSError) and exc.filename is not None:
        given = exc.errno, exc.strerror, exc.filename, None, exc.filename2
        given = given if exc.filename2 is not None else given[:3]
    message = message_of(exc, secrets)
    kept = secrets.scrubbed(given)
    if kept is None:
        return message, None
    changed = any(map(is_not, kept, given))
    if changed and type(exc).__module__ == "builtins":
        with suppress(Exception):  # its text quotes its arguments, perhaps in another form now
            message = message_of(type(exc)(*kept), secrets)
    return message, _small(kept)


def _small(value: Any) -> Packed | None:
    """The value, packed; None if it cannot be recorded, or is large."""
    try:
        packed = pack(value, "exception")
    except RefusedValueError:
        return None
    return packed if len(packed) <= ERROR_SIZE_MAX else None


def _attributes(exc: BaseException, secrets: Secrets) -> tuple[Packed | None, list[str]]:
    """The attributes of an exception that can be recorded, and the names of the others."""
    kind = type(exc)
    found = {name: slot.__get__(exc) for name, slot in slots(kind).items() if _is_set(exc, slot)}
    found |= vars(exc)  # its notes among them
    kept: dict[str, Packed] = {}
    left_out: list[str] = []
    room = ERROR_SIZE_MAX
    for name, value in found.items():
        clean_value = secrets.scrubbed((value,))
        packed = None if clean_value is None else _small(clean_value[0])
        if packed is None or len(packed) > room:
            left_out.append(f".{name} ({kind_name(value)})")
        else:
            kept[name], room = packed, room - len(packed)
    return pack_map(kept) if kept else None, left_out[:LEFT_OUT_MAX]


def _is_set(exc: BaseException, slot: MemberDescriptorType) -> bool:
    try:
        slot.__get__(exc)
    except AttributeError:
        return False
    return True


def message_of(exc: BaseException, secrets: Secrets) -> str:
    """The text of the exception."""
    try:
        return secrets.scrub(str(exc))
    except Exception as error:  # of the user's __str__
        return f"<no message: {type(exc).__name__}.__str__ raised {type(error).__name__}>"


def clean(text: str) -> str:
    """Text that UTF-8 can hold, of bounded size."""
    return text[:TEXT_SIZE_MAX].encode("utf-8", "replace").decode()


def slots(kind: type) -> dict[str, MemberDescriptorType]:
    """The attributes that exceptions of a type have beside their __dict__."""
    return {
        name: held
        for one in reversed(kind.__mro__)
        for name, held in vars(one).items()
        if isinstance(held, MemberDescriptorType)
        and (one.__module__ != "builtins" or name in _TELLING.get(one, ()))
    }
