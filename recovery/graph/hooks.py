"""What a runtime object is told of, if it wants to know: its hooks are called where it has them."""

from __future__ import annotations

import inspect
import logging
from typing import Any

from recovery.declare.scope import current_scope

_logger = logging.getLogger("recovery")


async def tell(runtime: Any, hook: str, *args: Any, **details: Any) -> Any:
    """Call a hook of the runtime, if it has it; what it gives, None if it fails.

    It looks on: nothing that it does is recorded, and nothing that goes wrong in it is the run's.
    """
    function = getattr(runtime, hook, None)
    if not callable(function):
        return None
    token = current_scope.set(None)
    try:
        found = function(*args, **details)
        return await found if inspect.isawaitable(found) else found
    except Exception:
        _logger.exception("the runtime's hook %s failed; the run goes on", hook)
        return None
    finally:
        current_scope.reset(token)
