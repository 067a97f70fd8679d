"""Calls the hooks of a runtime object, if it has them."""

from __future__ import annotations

import inspect
import logging
from typing import Any

from recovery.declare.scope import current_scope

_logger = logging.getLogger("recovery")


async def call_hook(runtime: Any, hook: str, *args: Any, **details: Any) -> Any:
    """Call a hook of the runtime, if it has it; returns its result, None if it fails.

    A hook only observes: its actions are not recorded, and its errors do not reach the run.
    """
    function = getattr(runtime, hook, None)
    if not callable(function):
        return None
    token = current_scope.set(None)
    try:
        found = function(*args, **details)
        return await found if inspect.isawaitable(found) else found
    except Exception:
        _logger.exception("the runtime's hook %s failed; the run continues", hook)
        return None
    finally:
        current_scope.reset(token)
