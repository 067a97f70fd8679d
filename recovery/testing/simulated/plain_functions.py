"""Counts calls of plain functions for a crash test, and dies in them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import FunctionType
from typing import Any

from recovery.declare.scope import current_call
from recovery.testing.simulated.simulated_life import Life, arguments
from recovery.testing.simulated.user_code import wrapped


class Watch:
    """Functions whose calls are reported to the present session."""

    def __init__(self, functions: Sequence[FunctionType]) -> None:
        self.functions = functions
        self.life: Life | None = None

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch them, whichever code calls them."""
        with ExitStack() as stack:
            for function in self.functions:
                stack.enter_context(wrapped(function, self._seen))
            yield

    def _seen(self, function: FunctionType) -> Callable[..., Any]:
        async def body_async(*args: Any, **kwargs: Any) -> Any:
            life, made = self._enter(function, args, kwargs)
            result = await function(*args, **kwargs)
            if life is not None:
                life.leave(made, None)
            return result

        def body(*args: Any, **kwargs: Any) -> Any:
            life, made = self._enter(function, args, kwargs)
            result = function(*args, **kwargs)
            if life is not None:
                life.leave(made, None)
            return result

        return body_async if inspect.iscoroutinefunction(function) else body

    def _enter(
        self, function: FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Life | None, Any]:
        life, call = self.life, current_call()
        if life is None:
            return None, None
        if next(iter(inspect.signature(function).parameters), "") in ("self", "cls"):
            args = args[1:]
        text = f"{function.__name__}({arguments(args, kwargs)})"
        policy = "plain" if call is None else "inside"
        return life, life.enter(function.__name__, policy, call, (text, text))
