"""Checks the values of a tool's options. Pure."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from recovery.declare.retry import Retry
from recovery.journal.call_key import UNDO_CALL, UNDO_PREFIX
from recovery.option_checks import (
    check_callable,
    check_errors,
    check_one_of,
    check_seconds,
    check_takes,
)

# The parameters of options that are functions.
_PARAMETERS = {
    "reconcile": ("call",),
    "undo": ("call", "outcome"),
    "usage": ("result",),
    "combine": ("chunks",),
    "split": ("value",),
    "needs_approval": ("call",),
}


def _check_functions(name: str, given: dict[str, Any]) -> None:
    """The options of tool ``name`` that are functions, and their parameters."""
    for option, parameters in _PARAMETERS.items():
        function, what = given.get(option), "a function"
        if option == "needs_approval":
            function, what = given.get(option, False), "True, False or a function of the Call"
            if type(function) is bool:
                continue
        elif function is None:
            continue
        check_callable(option, function, what)
        check_takes(f"{option}= of {name}", function, parameters)


def check_identity(
    name: str, chosen: Callable[..., Any], function: Callable[..., Any], option: str = "identity"
) -> None:
    """Raise TypeError for a function (``option``) whose parameters do not fit those of the
    tool."""
    try:
        held = inspect.signature(getattr(function, "__func__", function)).parameters.values()
    except (TypeError, ValueError):  # a builtin function without a signature
        return
    first = [one.name for one in held if one.kind <= one.POSITIONAL_OR_KEYWORD]
    others = [one.name for one in held if one.kind is one.KEYWORD_ONLY]
    check_takes(f"{option}= of {name}", chosen, first, others)


def check_policy(policy: object) -> None:
    """Raise ValueError for an unknown policy about calls in doubt."""
    check_one_of("after_crash", policy, ("park", "retry", "report"))


def checked(given: dict[str, Any]) -> dict[str, Any]:
    """The options for a ToolSpec; TypeError or ValueError, with the name of the option."""
    name = given["name"]
    if not isinstance(name, str) or not name:
        raise TypeError(f"name is text, such as name='send_email'; not {name!r:.80}")
    if name == UNDO_CALL or name.startswith(UNDO_PREFIX):
        raise ValueError(f"calls named {name!r} are those of run.undo(): use another name")
    call_id = given.get("call_id", "one")
    if not isinstance(call_id, str) or not call_id:
        raise TypeError(f"call_id is text, such as call_id='toolu_1'; not {call_id!r:.80}")
    if "after_crash" in given:
        check_policy(given["after_crash"])
        if given.get("reconcile") is not None:
            raise ValueError(
                "reconcile= decides what happens after a crash, leave out after_crash="
            )
    for option in ("timeout_s", "approval_timeout_s"):
        check_seconds(option, given.get(option))
    if given.get("on_timeout") is not None:
        check_one_of("on_timeout", given["on_timeout"], ("in_doubt", "fail"))
    _check_functions(name, given)
    if (given.get("combine") is None) != (given.get("split") is None):
        raise ValueError("combine= and split= go together: a replayed stream has chunks again")
    if "retry" in given:
        given["retry"] = Retry.of(given["retry"])
    if "raises" in given:
        given["raises"] = check_errors("raises", given["raises"])
    return given
