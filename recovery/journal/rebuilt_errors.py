"""Raises recorded exceptions again, of their own type if this process has loaded it.

A type is looked up by its name among the exception classes that are loaded. Nothing is imported
for that. The exception is made by the constructor of its builtin base class and is then given the
recorded attributes, so no code of its own class runs.
"""

from __future__ import annotations

import builtins
import sys
from contextlib import suppress
from dataclasses import fields, replace
from typing import Any

from eventlog import Packed, RefusedValueError
from recovery.errors import ApprovalDeniedError, ToolError
from recovery.journal.events import CallFailed
from recovery.journal.failure import clean, slots
from recovery.values.pack import unpack
from recovery.values.type_names import OWN, is_named, public_name, subclasses, type_name

# Exceptions that the runtime itself raises in place of a result.
_OURS: dict[str, type[Exception]] = {
    type_name(kind): kind for kind in (RefusedValueError, ApprovalDeniedError)
}
_Kinds = tuple[type[Exception], ...]
# Exceptions with a meaning for the generators and coroutines that they pass through.
_UNRAISABLE = (StopIteration, StopAsyncIteration)
SHARED_TYPES = 2  # from this version of a run's rules on, exceptions keep any loaded type


def rebuilt(
    failed: CallFailed,
    declared: _Kinds,
    rules: int,
    raised: Exception | None = None,
) -> Exception:
    """The exception that the agent sees, on the first execution and on replay.

    ``declared``: the types that the tool names. ``rules``: of the run. ``raised``: the exception
    itself, if it was raised just now. The two differ only in the traceback.
    """
    held = {name: getattr(failed, name) for name in ("args", "attributes", "group", "cause")}
    packed = {name: unpack(one) for name, one in held.items() if type(one) is Packed}
    failed = replace(failed, **packed)
    if rules < SHARED_TYPES:
        exc = _of_rules_1(failed, declared)
        exc.__cause__ = _cause(failed, declared, raised)
    else:
        found = _made(failed, declared, raised)
        exc = found if isinstance(found, Exception) else _stand_in(failed)
    return exc.with_traceback(raised.__traceback__ if raised is not None else None)


def _tool_error(failed: CallFailed) -> ToolError:
    return ToolError(failed.type.removeprefix("builtins."), failed.message, failed.traceback)


def _stand_in(failed: CallFailed) -> ToolError:
    """For an exception whose type is not loaded, with its text: what the agent makes of the text,
    such as a message to a model, is the same as when the tool raised it."""
    exc = _tool_error(failed)
    exc.args = (failed.message,)
    exc.add_note(f"it was of type {exc.type_name}, which is not loaded in this process")
    return exc


def _cause(
    failed: CallFailed, declared: _Kinds, raised: BaseException | None
) -> BaseException | None:
    """The cause of the tool's exception. It is not raised here, so it may be of any type."""
    if not failed.cause:
        return None
    (held,) = failed.cause
    return _part(held, declared, raised and raised.__cause__, BaseException)


def _made(
    failed: CallFailed,
    declared: _Kinds,
    raised: BaseException | None,
    root: type[BaseException] = Exception,
) -> BaseException | None:
    """Of the recorded type, else of its nearest base class that is loaded and specific."""
    for name in (failed.type, *(failed.bases or ())):
        known = type(raised) if raised is not None and name == failed.type else None
        kind = _loaded(name, declared, known, root)
        if kind is None or (root is Exception and issubclass(kind, _UNRAISABLE)):
            continue
        with suppress(Exception):  # a class that is not what its name says: try the next one
            exc = _built(kind, failed)
            if clean(str(exc)) != failed.message:
                exc.add_note(f"its message when it was recorded: {failed.message}")
            exc.__cause__ = _cause(failed, declared, raised)
            if failed.left_out:
                exc.add_note(f"not recorded of it: {', '.join(failed.left_out)}")
            return exc
    return None


def _loaded(
    name: str,
    declared: _Kinds,
    raised: type[BaseException] | None,
    root: type[BaseException],
) -> type[BaseException] | None:
    """The exception class of this name, if it is loaded."""
    if raised is not None and is_named(name, raised):
        return raised
    for kind in declared:
        for one in (kind, *subclasses([kind])):
            if is_named(name, one):
                return one
    module, _, attribute = name.rpartition(".")
    held = sys.modules.get(module)
    if held is not None:
        # Not by getattr: a module may run code of its own for it, and import something.
        found = object.__getattribute__(held, "__dict__").get(attribute)
        if isinstance(found, type) and issubclass(found, root):
            return found
    newest = None
    for known in subclasses([root]):
        if is_named(name, known):
            newest = known
    return newest


def _built(kind: type[BaseException], failed: CallFailed) -> BaseException:
    args = tuple(failed.args) if failed.args is not None else (failed.message,)
    if kind.__module__.partition(".")[0] in OWN:
        with suppress(Exception):  # the library's own constructors accept args
            return kind(*args)
    base: Any = next(one for one in kind.__mro__ if one.__module__ == "builtins")
    if issubclass(base, BaseExceptionGroup):
        args = (args[0], [_part(part) for part in failed.group])
    exc: BaseException = base.__new__(kind, *args)
    base.__init__(exc, *args)
    if not issubclass(base, OSError | BaseExceptionGroup):  # whose arguments differ from args
        exc.args = args
    for name, value in (failed.attributes or {}).items():
        slot = slots(kind).get(name)
        if slot is not None:
            slot.__set__(exc, value)
        else:  # bypasses its own __setattr__ and properties
            exc.__dict__[name] = value
    return exc


def _part(
    failed: dict[str, Any],
    declared: _Kinds = (),
    raised: BaseException | None = None,
    root: type[BaseException] = Exception,
) -> BaseException:
    """An exception inside another one."""
    known = {one.name for one in fields(CallFailed)}
    event = CallFailed(0, **{name: value for name, value in failed.items() if name in known})
    found = _made(event, declared, raised, root)
    return found if found is not None else _stand_in(event)


def _of_rules_1(failed: CallFailed, declared: _Kinds) -> Exception:
    """As the first release did: only builtin and declared types, made by their constructors."""
    kind = next((one for one in declared if is_named(failed.type, one)), None)
    if kind is None and failed.type.startswith("builtins."):
        found = getattr(builtins, failed.type.removeprefix("builtins."), None)
        if isinstance(found, type) and issubclass(found, Exception):
            kind = None if issubclass(found, _UNRAISABLE) else found
    kind = _OURS.get(public_name(failed.type), kind)
    if kind is not None and failed.args is not None:
        with suppress(Exception):  # its constructor takes other arguments
            exc = kind(*failed.args)
            if type(exc) is kind and str(exc) == failed.message:
                return exc
    return _tool_error(failed)
