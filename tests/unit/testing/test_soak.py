"""The soak's judgement, and a few seconds of a soak itself."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from eventlog import EventLog
from tests.support.paths import ROOT

sys.path.append(str(ROOT / "tools"))  # behind what is installed

from bench.soak._judge import judge, unsettled


def samples(**curves):
    return [
        {"at": 60.0 * minute, "pid": 1, **{name: curve(minute) for name, curve in curves.items()}}
        for minute in range(61)
    ]


def steady(**more):
    same = {
        "memory_kb": lambda m: 50_000,
        "descriptors": lambda m: 90,
        "threads": lambda m: 5,
        "p50_ms": lambda m: 2.0,
    }
    return samples(**same | more)


def outside(journal=lambda m: 3):
    return samples(journal_segments=journal, segments=lambda m: 400, mb=lambda m: 90.0)


@pytest.mark.parametrize(
    ("what", "curve"),
    [
        ("memory_kb", lambda m: 50_000 + 1000 * m),
        ("descriptors", lambda m: 90 + m),
        ("threads", lambda m: 5 + m // 4),
        ("p50_ms", lambda m: 2.0 + m / 10),
    ],
)
def test_what_grows_with_time_is_told(what, curve):
    vitals = {"lasting": steady(**{what: curve}), "killed": steady(), "reader": steady()}
    verdict = judge(vitals, outside(), [], 10)
    assert verdict.leaks == [f"lasting {what}"] and not verdict.sound


def test_segments_that_are_not_removed_are_told():
    vitals = {"lasting": steady(), "killed": steady(), "reader": steady()}
    assert judge(vitals, outside(journal=lambda m: m), [], 10).leaks == ["outside journal_segments"]


def test_nothing_wrong_and_nothing_grown_is_sound():
    vitals = {"lasting": steady(), "killed": steady(), "reader": steady()}
    assert judge(vitals, outside(), [], 10).sound
    assert not judge(vitals, outside(), ["an effect twice"], 10).sound


@pytest.mark.parametrize(
    ("effects", "wrong"),
    [
        (["a", "b"], False),
        (["a", "b", "c"], False),
        (["a"], True),
        (["a", "a"], True),
        (["a", "b", "c", "d"], True),
    ],
)
def test_effects_of_a_run_under_way(tmp_path, effects, wrong):
    """Two calls with outcomes and one without: two or three effects, each a different one."""
    with EventLog.open(tmp_path / "log") as log:
        for call in range(3):
            lsn = log.append("call", {"tool": "act"})
            if call < 2:
                log.append("outcome", {"call": lsn})
    (tmp_path / "effects").write_text("".join(f"{one}\n" for one in effects))
    assert bool(unsettled(tmp_path / "log", tmp_path / "effects")) is wrong


# How long, how many agents, and how many steps they make at least in that time.
@pytest.mark.parametrize(
    ("minutes", "agents", "steps"),
    [(0.05, 2, -1), pytest.param(0.25, 8, 20, marks=pytest.mark.crash)],
)
def test_a_short_soak(minutes, agents, steps, tmp_path):
    command = [
        sys.executable,
        "-m",
        "tools.bench.soak",
        "--minutes",
        f"{minutes}",
        "--agents",
        f"{agents}",
        "--seed",
        "1",
        "--dir",
        str(tmp_path),
        "--out",
        str(tmp_path / "out"),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    figures = json.loads((tmp_path / "out" / "soak.json").read_text())
    assert figures["wrong"] == [], done.stdout + done.stderr
    assert figures["totals"]["steps"] > steps
    assert figures["totals"]["records read"] >= figures["totals"]["steps"]
    assert (tmp_path / "out" / "soak.svg").stat().st_size > 1000
