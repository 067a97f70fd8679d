"""Makes the calls of frameworks' agents: what the adapters of frameworks have in common.

An adapter gives each call its name in the log, the model's id, and the options that the user has
given for a tool of that name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from recovery import ApprovalDeniedError, Run, SyncRun, current_run, tool

MODEL = "model"  # the name of requests to models in the log
Options = Mapping[str, Any]  # of recovery.tool


def async_run() -> Run | None:
    """The present run; None outside of one. RuntimeError if its agent function is a plain one."""
    run = current_run()
    if isinstance(run, SyncRun):
        raise RuntimeError("agents need an async agent function: this run's is a plain one")
    return run


# -- a call, and its options


def checked(name: str, options: Options) -> dict[str, Any]:
    """The options for calls of this name. TypeError or ValueError for what is no option."""
    as_call(_approved, name, options)
    return dict(options)


def checked_by_name(given: Mapping[str, Options] | None) -> dict[str, dict[str, Any]]:
    """The options by the names of an agent's tools, each checked. ValueError for ``redact``."""
    for name, options in (given or {}).items():
        refuse_redact(name, options)
    return {name: checked(name, options) for name, options in (given or {}).items()}


def refuse_redact(name: str, options: Options) -> None:
    """Raise ValueError where it would hide arguments in the call of a tool, and nowhere else.

    The model's reply has them, and is served on replay: so it has to be in the log as it was.
    """
    if "redact" in options:
        raise ValueError(
            f"{name}: redact= cannot hide arguments that a model gives: its replies and requests "
            "have them, and are recorded whole. Encrypt the store"
        )


def as_call(
    function: Callable[..., Any], name: str, options: Options, call_id: str | None = None
) -> Callable[..., Any]:
    """The function, as one call of this name. ``call_id``: the model's; it may have given none."""
    named: dict[str, Any] = {"name": name, **options}
    if call_id:
        named["call_id"] = call_id
    made: Callable[..., Any] = tool(**named)(function)
    return made


async def denial(
    name: str, call_id: str | None, arguments: Mapping[str, Any], timeout_s: float | None = None
) -> ApprovalDeniedError | None:
    """Ask for the approval of a call of a tool: the denial; None once it is approved.

    It is a call ``NAME.approval`` of the run, which waits for ``recovery approve``. It is denied
    when there was no decision for ``timeout_s``.
    """
    options: dict[str, Any] = {"after_crash": "retry", "needs_approval": True}
    if timeout_s is not None:
        options["approval_timeout_s"] = timeout_s
    try:
        await as_call(_approved, f"{name}.approval", options, call_id)(**arguments)
    except ApprovalDeniedError as exc:
        return exc
    return None


async def _approved(*given: Any, **arguments: Any) -> bool:
    return True


# -- what identifies a call, and what is recorded of it


def same(value: Any) -> Any:
    """The value: identifies a call, or is a stream, as it is recorded."""
    return value


def all_arguments(**arguments: Any) -> Any:
    """Identifies a call by all its arguments, whatever its function captures."""
    return arguments


def dumped(model: Any) -> Any:
    """A Pydantic model as JSON has it, with the fields that were set and no others."""
    return model.model_dump(mode="json", by_alias=True, exclude_unset=True, warnings=False)


def plain(value: Any, sent: Callable[[Any], Any] = same) -> Any:
    """A value as JSON has it, the same in each process.

    ``sent``: makes of an object of the framework, at any depth, what of it is sent to a model.
    """
    if value is None or type(value) in (bool, int, float, str):
        return value
    value = sent(value)
    if isinstance(value, BaseModel):
        value = dict(value)
    elif is_dataclass(value) and not isinstance(value, type):
        value = {one.name: getattr(value, one.name) for one in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(one, sent) for key, one in value.items()}
    if isinstance(value, set | frozenset):
        return sorted((plain(one, sent) for one in value), key=repr)
    if isinstance(value, list | tuple):
        return [plain(one, sent) for one in value]
    return to_jsonable_python(value, fallback=lambda one: f"<{type(one).__qualname__}>")
