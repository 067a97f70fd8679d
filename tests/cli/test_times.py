"""The times and durations that users write."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from recovery.cli.times import seconds_of, time_ns_of

DAY = 86400


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        *[("90s", 90), ("15min", 900), ("12h", 43_200), ("30d", 30 * DAY), ("8w", 56 * DAY)],
        *[("10 minutes", 600), ("1.5 Hours", 5400), (" 2 d ", 2 * DAY)],
    ],
)
def test_durations_have_units(text: str, seconds: float) -> None:
    assert seconds_of("--older-than", text) == seconds
    assert time_ns_of("--since", text, 1e9) == (1e9 - seconds) * 1e9


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("today", datetime(2026, 5, 4, tzinfo=UTC)),
        ("Yesterday", datetime(2026, 5, 3, tzinfo=UTC)),
        ("2026-05-01", datetime(2026, 5, 1, tzinfo=UTC)),
        ("2026-05-04T11:00:00+02:00", datetime(2026, 5, 4, 9, tzinfo=UTC)),
        ("2h ago", datetime(2026, 5, 4, 8, 20, tzinfo=UTC)),
    ],
)
def test_times_are_of_the_calendar_or_from_now(text: str, at: datetime) -> None:
    now = datetime(2026, 5, 4, 10, 20, tzinfo=UTC).timestamp()
    assert time_ns_of("--since", text, now) == at.timestamp() * 1e9


@pytest.mark.parametrize("text", ["", "5", "5 y", "-5d", "tomorrow", "1e9d", "2026-13-01", "ago"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="a number with s, min, h, d or w"):
        seconds_of("--older-than", text)
    with pytest.raises(ValueError, match="no time; 2026-05-04T09:00:00Z"):
        time_ns_of("--since", text, 1e9)
