"""What came of a soak: what was wrong, what has grown, and pictures of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from eventlog import EventLog

from .._result import median

# What may differ between the second quarter of the time and the last one: noise, and caches that
# are not full after a quarter.
GROWTH_MAX = 1.15
STEADY = {  # of which process, what
    "lasting": ("memory_kb", "descriptors", "threads"),
    "reader": ("memory_kb", "descriptors", "threads"),
    "outside": ("journal_segments",),
}
POINTS = 120  # of each curve that is kept
_SLACK = {"memory_kb": 4096, "descriptors": 8, "threads": 4, "journal_segments": 2, "p50_ms": 2}

Samples = list[dict[str, Any]]


@dataclass(frozen=True)
class Verdict:
    """``wrong``: what must never be. ``grown``: by how much what should be steady has changed."""

    wrong: list[str]
    grown: dict[str, tuple[float, float]]
    totals: dict[str, float]
    samples: dict[str, Samples] = field(repr=False)

    @property
    def leaks(self) -> list[str]:
        """What has grown by more than it may."""
        return [
            name
            for name, (before, after) in self.grown.items()
            if after > before * GROWTH_MAX + _SLACK.get(name.split(" ")[-1], 0)
        ]

    @property
    def sound(self) -> bool:
        """Whether all is as it must be."""
        return not self.wrong and not self.leaks

    @property
    def lines(self) -> list[str]:
        """For a person."""
        made = [f"{name}: {value:,.0f}" for name, value in self.totals.items()]
        made += [
            f"{name}: {before:,.1f} in the second quarter, {after:,.1f} in the last"
            + (" GROWN" if name in self.leaks else "")
            for name, (before, after) in self.grown.items()
        ]
        return [
            *made,
            *(f"WRONG: {what}" for what in self.wrong),
            "sound" if self.sound else "NOT SOUND",
        ]

    def as_json(self) -> dict[str, Any]:
        """All of it, with fewer samples."""
        return {
            "wrong": self.wrong,
            "leaks": self.leaks,
            "totals": self.totals,
            "grown": {name: list(pair) for name, pair in self.grown.items()},
            "samples": {name: thinned(some) for name, some in self.samples.items()},
        }


def judge(vitals: dict[str, Samples], outside: Samples, wrong: list[str], kills: int) -> Verdict:
    """From what the processes say of themselves, and what was seen of them."""
    samples = {**vitals, "outside": outside}
    began = min((some[0]["at"] for some in samples.values() if some), default=0.0)
    for some in samples.values():
        for one in some:
            one["minute"] = (one["at"] - began) / 60
    grown = {
        f"{name} {what}": quarters(samples[name], what)
        for name, kinds in STEADY.items()
        for what in kinds
    }
    grown["lasting p50_ms"] = quarters(samples["lasting"], "p50_ms")
    totals: dict[str, float] = {"kills": kills}
    for what in ("steps", "effects", "crashes", "in doubt", "runs", "checked"):
        totals[what] = sum(summed(samples[name], what) for name in ("lasting", "killed"))
    totals["records read"] = summed(samples["reader"], "records")
    return Verdict(wrong, grown, totals, samples)


def unsettled(log: Path, effects: Path) -> list[str]:
    """What is wrong with a run that has not ended: each outcome has had its effect, once, and an
    effect without one is that of a call which was under way at the end."""
    keys = effects.read_text().split() if effects.exists() else []
    calls: set[int] = set()
    done = 0
    with EventLog.read(log) as reader:
        for record in reader.records():
            if record.kind == "call" and record.body["tool"] == "act":
                calls.add(record.lsn)
            elif record.kind in ("outcome", "resolved") and record.body["call"] in calls:
                done += record.kind == "outcome" or record.body["how"] == "outcome"
    if len(set(keys)) == len(keys) and done <= len(keys) <= len(calls):
        return []
    return [
        f"{log.name}: {len(calls)} calls, {done} outcomes, {len(keys)} effects, "
        f"{len(set(keys))} different"
    ]


def quarters(samples: Samples, what: str) -> tuple[float, float]:
    """The median in the second quarter of the time and in the last."""
    end = max((one["minute"] for one in samples), default=0.0)
    values = [(one["minute"], one[what]) for one in samples if what in one]
    second = [value for minute, value in values if end / 4 <= minute < end / 2]
    last = [value for minute, value in values if minute >= end * 3 / 4]
    return median(second), median(last)


def summed(samples: Samples, what: str) -> float:
    """A count over all processes that have had this name."""
    newest = {one["pid"]: one.get(what, 0) for one in samples}
    return float(sum(newest.values()))


def thinned(samples: Samples) -> Samples:
    """So many of them as a curve needs."""
    step = max(1, len(samples) // POINTS)
    return [
        {name: round(value, 3) for name, value in one.items() if name not in ("at", "pid")}
        for one in samples[::step]
    ]


def pictures(path: Path, verdict: Verdict) -> None:
    """Four curves over the time."""
    mpl.rcParams.update({"svg.hashsalt": "agent-eventlog", "font.size": 9})
    figure = Figure(figsize=(9, 6.5), layout="constrained")
    panels: Sequence[tuple[str, list[tuple[str, str, float]]]] = (
        (
            "memory of the process, MB",
            [
                ("lasting", "memory_kb", 1 / 1024),
                ("killed", "memory_kb", 1 / 1024),
                ("reader", "memory_kb", 1 / 1024),
            ],
        ),
        ("time of a step, ms", [("lasting", "p50_ms", 1), ("lasting", "p99_ms", 1)]),
        (
            "descriptors and threads",
            [
                ("lasting", "descriptors", 1),
                ("lasting", "threads", 1),
                ("reader", "descriptors", 1),
            ],
        ),
        (
            "on disk",
            [("outside", "segments", 1), ("outside", "mb", 1), ("outside", "journal_segments", 1)],
        ),
    )
    for number, (title, curves) in enumerate(panels):
        axes = figure.add_subplot(2, 2, number + 1)
        for name, what, scale in curves:
            some = [one for one in verdict.samples[name] if what in one]
            axes.plot(
                [one["minute"] for one in some],
                [one[what] * scale for one in some],
                label=f"{name}: {what}",
                linewidth=0.9,
            )
        axes.set_title(title)
        axes.set_ylim(bottom=0)
        axes.set_xlabel("minutes")
        axes.legend(frameon=False, fontsize=7)
        axes.grid(alpha=0.3)
    figure.savefig(path, format="svg", metadata={"Date": None})
