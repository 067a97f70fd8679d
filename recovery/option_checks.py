"""Checks the options that callers give, and names the nearest right one. Pure.

An error says which option of which function is wrong, what was given, and what it takes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import wraps
from typing import Any, TypeVar

C = TypeVar("C")

# Wrong names for options: those of other libraries, and frequent guesses.
_MEANT = {
    "attempts": "retry",
    "backoff": "delay_s",
    "backoff_s": "delay_s",
    "delay": "delay_s",
    "max_attempts": "attempts",
    "max_delay": "max_delay_s",
    "max_retries": "retry",
    "max_tries": "attempts",
    "on_crash": "after_crash",
    "retries": "retry",
    "retry_on": "on",
    "timeout": "timeout_s",
    "approval_timeout": "approval_timeout_s",
    "park_after": "park_after_s",
    "checkpoint_every": "checkpoint_every_n",
    "every_n": "every_n_nodes",
    "max_steps": "steps",
    "max_tokens": "tokens",
    "max_cost": "cost",
    "max_calls": "calls",
    "max_seconds": "seconds",
    "time_s": "seconds",
}


def names_its_options(where: str, by_position: str = "") -> Callable[[type[C]], type[C]]:
    """A class decorator: an error about a wrong option names the right one.

    ``by_position``: the error for options without names; "" if they are allowed.
    """

    def decorated(cls: type[C]) -> type[C]:
        init = cls.__init__
        known = [name for name in inspect.signature(init).parameters if name != "self"]

        @wraps(init)  # so that the signature of the class shows its options
        def checked(self: C, *args: Any, **given: Any) -> None:
            if args and by_position:
                raise TypeError(by_position)
            check_names(where, given, known)
            init(self, *args, **given)

        cls.__init__ = checked  # type: ignore[method-assign,assignment]
        return cls

    return decorated


def check_names(where: str, given: Iterable[str], known: Collection[str]) -> None:
    """Raise TypeError for an option that ``where`` does not have, with the nearest one."""
    for name in given:
        if name not in known:
            meant = _MEANT.get(name)
            near = [meant] if meant in known else nearest(name, known)
            hint = f". Did you mean {near[0]}=?" if near else ""
            takes = ", ".join(sorted(known))
            raise TypeError(f"{where} has no option {name}={hint or '.'} It takes {takes}.")


def nearest(name: str, known: Iterable[str]) -> list[str]:
    """The name that was most likely meant, if any is near."""
    from difflib import get_close_matches  # noqa: PLC0415 - only where something is wrong

    return get_close_matches(name, known, 1, 0.5)


def check_one_of(option: str, value: object, known: Collection[str]) -> None:
    """Raise ValueError for a value that is none of these texts, with the nearest one."""
    if not isinstance(value, str) or value not in known:
        *first, last = [f'"{one}"' for one in known]
        near = nearest(value, known) if isinstance(value, str) else []
        hint = f'. Did you mean "{near[0]}"?' if near else ""
        raise ValueError(f"{option} is {', '.join(first)} or {last}, not {value!r}{hint}")


def check_count(option: str, value: object, least: int = 1, *, none: bool = False) -> None:
    """Raise TypeError for a value that is no int, ValueError for one below ``least``."""
    if value is None and none:
        return
    wanted = f"{option} is a whole number, {least} or more" + (", or None" if none else "")
    if type(value) is not int:
        raise TypeError(f"{wanted}; not {_shown(value)}")
    if value < least:
        raise ValueError(f"{wanted}; not {value}")


def check_seconds(
    option: str, value: object, *, none: bool = True, above: bool = True, unit: str = "seconds"
) -> None:
    """Raise TypeError for no number, ValueError for one that is not above 0 (or is below it)."""
    if value is None and none:
        return
    least = "more than 0" if above else "0 or more"
    wanted = f"{option} is a number of {unit}, {least}" + (", or None" if none else "")
    if type(value) not in (int, float) and not _is_number(value):
        raise TypeError(f"{wanted}; not {_shown(value)}")
    number: Any = value
    if not (number > 0 or (number == 0 and not above)):
        raise ValueError(f"{wanted}; not {value!r}")


def check_callable(option: str, value: object, what: str) -> None:
    """Raise TypeError for a value that is no function."""
    if not callable(value):
        raise TypeError(f"{option} is {what}, not {_shown(value)}")


def check_takes(
    option: str, function: Callable[..., Any], names: Sequence[str], of: Sequence[str] = ()
) -> None:
    """Raise TypeError for an object that is no function, or does not take these parameters: the
    first by position, those in ``of`` by name."""
    wanted = ", ".join((*names, *(["*", *of] if of else ())))
    check_callable(option, function, f"a function of ({wanted})")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a builtin function without a signature
        return
    try:
        signature.bind(*names, **dict.fromkeys(of))
    except TypeError:
        has = ", ".join(map(str, signature.parameters.values())) or "none"
        name = getattr(function, "__name__", type(function).__name__)
        raise TypeError(
            f"{option} is a function of ({wanted}), and the parameters of {name} are: {has}"
        ) from None


def check_errors(option: str, value: object) -> tuple[type[Exception], ...]:
    """Exception classes, from one of them or several; TypeError for anything else."""
    kinds: Any = value if isinstance(value, list | tuple | set | frozenset) else (value,)
    for kind in kinds:
        if not (isinstance(kind, type) and issubclass(kind, Exception)):
            raise TypeError(f"{option} takes exception classes, such as [OSError]; not {kind!r}")
    return tuple(kinds)


def _is_number(value: object) -> bool:
    """Whether it is a number of another type, as of numpy or Decimal; not a bool or text."""
    from numbers import Number  # noqa: PLC0415 - only where something is odd

    return isinstance(value, Number) and not isinstance(value, bool | complex)


def _shown(value: object) -> str:
    hint = " (text)" if isinstance(value, str) else ""
    return f"{value!r:.80}{hint}"
