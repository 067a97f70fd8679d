"""Reads the times and durations that users write on a command line."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime, timedelta

DAY_S = 86400
_LENGTH = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)\s*([a-z]+?)s?")
_UNITS = {
    **dict.fromkeys(("s", "sec", "second"), 1),
    **dict.fromkeys(("m", "min", "minute"), 60),
    **dict.fromkeys(("h", "hour"), 3600),
    **dict.fromkeys(("d", "day"), DAY_S),
    **dict.fromkeys(("w", "week"), 7 * DAY_S),
}
_DAYS_AGO = {"today": 0, "yesterday": 1}
_BEGIN = datetime(1970, 1, 1, tzinfo=UTC)


def seconds_of(option: str, text: str) -> float:
    """``90s``, ``15min``, ``12 h``, ``30 days``, ``8w``: in seconds; ValueError for all else."""
    found = _LENGTH.fullmatch(text.strip().lower())
    if found is None or found[2] not in _UNITS:
        raise ValueError(f"{option} {text}: a number with s, min, h, d or w, as in 30d")
    return float(found[1]) * _UNITS[found[2]]


def time_ns_of(option: str, text: str, now: float) -> int:
    """A time in ns since 1970: as RFC 3339 has it, ``today`` and ``yesterday`` (when they began),
    or how long ago; local where it has no zone. ValueError for all else."""
    word = text.strip().lower()
    try:
        if word in _DAYS_AGO:
            day = datetime.fromtimestamp(now) - timedelta(days=_DAYS_AGO[word])
            at = day.replace(hour=0, minute=0, second=0, microsecond=0)
        else:
            at = datetime.fromisoformat(text.strip())
        at = at if at.tzinfo else at.astimezone()
        return (at - _BEGIN) // timedelta(microseconds=1) * 1000
    except (ValueError, OverflowError):
        pass
    try:
        return int((now - seconds_of(option, word.removesuffix("ago"))) * 1e9)
    except ValueError:
        example = "2026-05-04T09:00:00Z, 2026-05-04 09:00, yesterday, 10 min or 2h"
        raise ValueError(f"{option} {text} is no time: write {example}") from None


def when(seconds: float) -> str:
    """A time as text: local, with its zone."""
    try:
        text = datetime.fromtimestamp(seconds).astimezone().isoformat(" ", "seconds")
    except (ValueError, OverflowError, OSError):  # a time that no clock gives
        return f"{seconds:g} s"
    return text.replace("+00:00", "Z")


def zone_name() -> str:
    """``UTC``, or ``local`` for a zone with other offsets, which summer time may change."""
    return "local" if time.timezone or time.daylight else "UTC"


def when_ns(time_ns: int) -> str:
    """A local time with nine digits behind the second, without its zone."""
    seconds, ns = divmod(time_ns, 1_000_000_000)
    try:
        return f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(seconds))}.{ns:09d}"
    except (ValueError, OverflowError, OSError):  # as above
        return f"{time_ns} ns"
