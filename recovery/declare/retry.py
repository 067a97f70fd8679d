"""Decides whether a call that raised is repeated, and after which delay. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from eventlog.errors import RefusedValueError
from recovery.errors import PermanentError
from recovery.option_checks import (
    check_count,
    check_errors,
    check_seconds,
    check_takes,
    names_its_options,
)

Errors = type[Exception] | Sequence[type[Exception]] | Callable[[Exception], bool]

# Repeating the call does not change these.
_HOPELESS = (PermanentError, RefusedValueError)


@names_its_options("Retry")
@dataclass(frozen=True, slots=True)
class Retry:
    """How often, and how soon, a call that raised is repeated.

    Args:
        attempts: How many in all (3).
        delay_s: Seconds before the second attempt (1). Or a function of the exception and the
            number of the failed attempt, for a Retry-After header.
        factor: Each further delay is so many times as long (2).
        max_delay_s: The longest delay in seconds (60).
        jitter: Up to this part of a delay is subtracted at random (0.5), so that runs that failed
            together do not retry together.
        on: The exceptions that are retried, or a function that decides (Exception). PermanentError
            is never retried.
    """

    attempts: int = 3
    delay_s: float | Callable[[Exception, int], float] = 1.0
    factor: float = 2.0
    max_delay_s: float = 60.0
    jitter: float = 0.5
    on: Errors = Exception

    def __post_init__(self) -> None:
        check_count("Retry(attempts=)", self.attempts)
        if callable(self.delay_s):
            check_takes("Retry(delay_s=)", self.delay_s, ("error", "failed_attempt"))
        else:
            check_seconds("Retry(delay_s=)", self.delay_s, none=False, above=False)
        for name in ("factor", "max_delay_s", "jitter"):
            unit = "seconds" if name == "max_delay_s" else "times"
            value = getattr(self, name)
            check_seconds(f"Retry({name}=)", value, none=False, above=False, unit=unit)
        if self.jitter > 1:
            raise ValueError(f"Retry(jitter=) is the part of a delay, up to 1, not {self.jitter}")
        if isinstance(self.on, type) or not callable(self.on):
            object.__setattr__(self, "on", check_errors("Retry(on=)", self.on))
        else:
            check_takes("Retry(on=)", self.on, ("error",))

    @classmethod
    def of(cls, given: object) -> Retry | None:
        """Not for users: a Retry from the value of ``@tool(retry=)``."""
        if given is None or isinstance(given, Retry):
            return given
        if type(given) is not int:
            raise TypeError(
                f"retry= is a Retry, or how many attempts are made in all; not {given!r:.80}"
            )
        check_count("retry=", given)
        return cls(given)

    def again(self, error: Exception, failed: int) -> bool:
        """Whether to retry after the ``failed``-th attempt that raised, with ``error``."""
        if failed >= self.attempts or isinstance(error, _HOPELESS):
            return False
        kinds: Any = self.on
        if isinstance(kinds, type | tuple):
            return isinstance(error, kinds)
        return bool(kinds(error))

    def pause_s(self, error: Exception, failed: int, chance: float) -> float:
        """Seconds until the next attempt, after the ``failed``-th one raised ``error``; ``chance``
        is a random number in [0, 1)."""
        if callable(self.delay_s):
            return max(0.0, float(self.delay_s(error, failed)))
        try:
            delay = min(self.delay_s * self.factor ** (failed - 1), self.max_delay_s)
        except OverflowError:
            delay = self.max_delay_s
        return delay * (1 - self.jitter * chance)
