"""Selects the records to show."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from types import SimpleNamespace

from eventlog.format.frame import LSN_MAX
from logdump.context import UsageError
from logdump.rows import Row
from recovery.cli.times import time_ns_of

# Failures and doubts: what --errors shows.
ERRORS = frozenset({"failure", "attempt_failed", "abandoned", "run_failed", "agent_raised"})

_RANGE = re.compile(r"(\d{0,19})(\.\.)?(\d{0,19})")


@dataclass
class Wanted:
    """The selection: a record must pass all its tests."""

    lsns: tuple[int, int] = (1, LSN_MAX)
    steps: tuple[int, int] | None = None
    times_ns: tuple[int, int] | None = None
    kinds: list[str] = field(default_factory=list)
    tools: list[str] = field(default_factory=list)
    pattern: re.Pattern[str] | None = None
    errors: bool = False
    in_doubt: Collection[int] = ()  # calls in doubt

    @classmethod
    def of(cls, args: SimpleNamespace, now: float) -> Wanted:
        """The selection of these options; UsageError when one makes no sense."""
        times = None
        if args.since is not None or args.until is not None:
            since = _time("--since", args.since, now) if args.since is not None else -(1 << 63)
            times = since, _time("--until", args.until, now) if args.until is not None else 1 << 64
        try:
            pattern = None if args.grep is None else re.compile(args.grep)
        except (re.error, OverflowError, RecursionError) as exc:
            raise UsageError(f"--grep {args.grep}: no regular expression: {exc}") from None
        return cls(
            (1, LSN_MAX) if args.lsn is None else _range("--lsn", args.lsn),
            None if args.step is None else _range("--step", args.step),
            times,
            args.kind or [],
            args.tool or [],
            pattern,
            args.errors,
        )

    @property
    def everything(self) -> bool:
        """Whether all records between ``lsns`` are wanted."""
        return not (self.kinds or self.tools or self.errors or self.pattern) and (
            self.steps is None and self.times_ns is None
        )

    def __call__(self, row: Row, text: Callable[[Row], str]) -> bool:
        """Whether it is selected; ``text`` gives its value, and is called only when needed."""
        if row.record is None:
            return self.everything
        if self.kinds and not _any(self.kinds, row.record.kind):
            return False
        if self.tools and not (row.tool and _any(self.tools, row.tool)):
            return False
        if self.steps and not (row.step is not None and _within(self.steps, row.step)):
            return False
        if self.times_ns and not _within(self.times_ns, row.record.time_ns):
            return False
        if self.errors and not self._is_error(row):
            return False
        return self.pattern is None or self.pattern.search(text(row)) is not None

    def _is_error(self, row: Row) -> bool:
        # A record that looks like an event, and is none, is reported as damage.
        is_damage = row.event is not None and row.event.kind == "damage"
        return row.kind in ERRORS or row.lsn in self.in_doubt or is_damage


def _any(patterns: list[str], name: str) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _within(bounds: tuple[int, int], number: int) -> bool:
    return bounds[0] <= number <= bounds[1]


def _range(option: str, text: str) -> tuple[int, int]:
    """``3``, ``3..7``, ``3..`` or ``..7``."""
    found = _RANGE.fullmatch(text.strip())
    first, dots, last = found.groups() if found else ("", None, "")
    if not (first or last) or not (dots or first == text.strip()):
        raise UsageError(f"{option} {text}: a number, or 3..7, 3.. or ..7")
    low = int(first) if first else 0
    high = int(last) if last else LSN_MAX if dots else low
    if high < low:
        raise UsageError(f"{option} {text}: nothing is from {low} to {high}")
    return low, high


def _time(option: str, text: str, now: float) -> int:
    try:
        return time_ns_of(option, text, now)
    except ValueError as exc:
        raise UsageError(str(exc)) from None
