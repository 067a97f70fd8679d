"""The times and durations that users write."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from recovery.cli.times import seconds_of, time_ns_of, when, when_ns, zone_name

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
    with pytest.raises(ValueError, match="is no time: write 2026-05-04T09:00:00Z"):
        time_ns_of("--since", text, 1e9)


@pytest.fixture
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("today", datetime(2026, 5, 3, 22, tzinfo=UTC)),
        ("yesterday", datetime(2026, 5, 2, 22, tzinfo=UTC)),
        ("2026-05-04 09:00", datetime(2026, 5, 4, 7, tzinfo=UTC)),
        ("2026-02-04 09:00", datetime(2026, 2, 4, 8, tzinfo=UTC)),  # winter
        ("2026-05-04T09:00:00Z", datetime(2026, 5, 4, 9, tzinfo=UTC)),
    ],
)
def test_a_time_without_a_zone_is_local(berlin: None, text: str, at: datetime) -> None:
    now = datetime(2026, 5, 3, 23, 20, tzinfo=UTC).timestamp()  # the 4th in Berlin
    assert time_ns_of("--since", text, now) == at.timestamp() * 1e9


def test_times_are_shown_with_their_zone(berlin: None) -> None:
    assert when(datetime(2026, 5, 4, 7, tzinfo=UTC).timestamp()) == "2026-05-04 09:00:00+02:00"
    assert when(datetime(2026, 2, 4, 8, tzinfo=UTC).timestamp()) == "2026-02-04 09:00:00+01:00"
    assert when_ns(1_777_878_000_000_000_007) == "2026-05-04 09:00:00.000000007"
    assert zone_name() == "local"
    assert when(1e300) == "1e+300 s" and when_ns(1 << 200) == f"{1 << 200} ns"
