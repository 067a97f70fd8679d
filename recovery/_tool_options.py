"""Checks the values of a tool's options. Pure."""

from __future__ import annotations

from typing import Any

from recovery._keys import UNDO_CALL, UNDO_PREFIX
from recovery._options import check_callable, check_errors, check_one_of, check_seconds
from recovery._retry import Retry


def check_policy(policy: object) -> None:
    """ValueError for what is no policy about calls in doubt."""
    check_one_of("after_crash", policy, ("park", "retry", "report"))


def checked(given: dict[str, Any]) -> dict[str, Any]:
    """The options as a ToolSpec has them; TypeError or ValueError, with the name of the option."""
    name = given["name"]
    if not isinstance(name, str) or not name:
        raise TypeError(f"name is text, such as name='send_email'; not {name!r:.80}")
    if name == UNDO_CALL or name.startswith(UNDO_PREFIX):
        raise ValueError(f"calls named {name!r} are those of run.undo(): use another name")
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
    for option in ("reconcile", "undo", "usage", "combine", "split"):
        if given.get(option) is not None:
            check_callable(option, given[option], "a function")
    if (given.get("combine") is None) != (given.get("split") is None):
        raise ValueError("combine= and split= go together: a replayed stream has chunks again")
    approval = given.get("needs_approval", False)
    if not callable(approval) and type(approval) is not bool:
        raise TypeError(
            f"needs_approval is True, False or a function of the Call, not {approval!r:.80}"
        )
    if "retry" in given:
        given["retry"] = Retry.of(given["retry"])
    if "raises" in given:
        given["raises"] = check_errors("raises", given["raises"])
    return given
