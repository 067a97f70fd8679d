"""What a log is made of: what is counted, and in how much memory."""

from __future__ import annotations

import statistics
from pathlib import Path
from random import Random
from typing import Any

import pytest
from logdump.stats import log_statistics
from logdump.stats.log_statistics import OTHERS, LogStatistics
from logdump.stats.samples import BUCKETS_MAX, KEPT_MAX, DurationSample, StepSizes

from eventlog import EventLog, Record
from tests.cli.harness import call, columns
from tests.property.recount import check_statistics, durations, spent, statistics_of
from tests.support.paths import TESTS

RUNS = TESTS / "data" / "runs"
READ = [
    "finished",
    "parked",
    "resolved",
    "waiting",
    "sleeping",
    "failed",
    "cancelled",
    "origin",
    "forked",
    "parent",
    "torn",
    "damaged_frame",
    "damaged_early",
    "missing_segment",
]


def records(run: str) -> list[Record]:
    with EventLog.read(RUNS / run) as reader:
        return list(reader.records(on_damage=lambda damage: None))


@pytest.mark.parametrize("run", READ)
def test_totals_are_those_of_a_recount(run: str) -> None:
    found = records(run)
    check_statistics(found)
    counted = statistics_of(found).time
    assert (
        counted.at_work_ns,
        counted.in_tools_ns,
        counted.parallel_ns,
        counted.waiting_ns,
    ) == spent(found)
    taken = {name: sorted(one) for name, one in durations(found).items()}
    tools = statistics_of(found).tools
    assert {
        name: (one.durations.count, one.durations.total_ns, one.durations.longest_ns)
        for name, one in tools.items()
        if one.durations.count
    } == {name: (len(times), sum(times), times[-1]) for name, times in taken.items()}
    assert all(
        tools[name].durations.median_ns() == int(statistics.median(times))
        for name, times in taken.items()
    )
    assert counted.at_work_ns and (run == "sleeping" or counted.in_tools_ns)


def test_recoveries_are_what_the_log_says_of_them() -> None:
    found = statistics_of(records("finished")).recoveries
    # LSN 40 and 54 resume behind the checkpoints at LSN 27 and 44: see `logdump dump`.
    entries = records("finished")
    resumed = [record.lsn for record in entries if record.kind == "run_resumed"]
    points = {r.body["step"]: r.lsn for r in entries if r.kind == "snapshot"}
    steps = [record.body["from_step"] for record in entries if record.kind == "run_resumed"]
    behind = [lsn - 1 - points[step] for lsn, step in zip(resumed, steps, strict=True)]
    assert (found.count, found.replayed, found.unknown) == (2, sum(behind), 0)
    outcomes = [r.lsn for r in entries if r.kind in ("outcome", "failure")]
    served = [
        lsn
        for at, step in zip(resumed, steps, strict=True)
        for lsn in outcomes
        if points[step] < lsn < at
    ]
    assert found.served.outcomes == len(served) == 4
    assert found.repeated == 1  # the tickets, in which it had died


def test_a_checkpoint_that_is_not_there_is_said() -> None:
    entries = [record for record in records("finished") if record.kind != "snapshot"]
    assert statistics_of(entries).recoveries.unknown == 2


def test_the_slowest_calls_and_no_waits_are_among_them() -> None:
    counted = statistics_of(records("finished"), slowest=3)
    times = {-lsn: ns for ns, lsn, *_ in counted.slow}
    assert list(times) == [70, 63, 55]
    assert times[70] == 3_652_000_000
    assert statistics_of(records("finished"), slowest=0).slow == []
    sleeping = statistics_of(records("sleeping"))
    assert sleeping.tools.keys() == {"search", "sleep"}
    assert [tool for _, _, tool, *_ in sleeping.slow] == ["search"]


def test_the_median_is_exact_up_to_a_bound_and_near_behind_it() -> None:
    rng, one = Random(1), DurationSample()
    times = [rng.randrange(10**9) for _ in range(KEPT_MAX)]
    for ns in times:
        one.add(ns)
    assert one.exact and one.median_ns() == int(statistics.median(times))
    for _ in range(10 * KEPT_MAX):
        times.append(rng.randrange(10**9))
        one.add(times[-1])
    assert (one.count, one.total_ns, one.longest_ns) == (len(times), sum(times), max(times))
    assert not one.exact and len(one._kept) <= KEPT_MAX
    assert abs(one.median_ns() - statistics.median(times)) < 0.05e9


@pytest.mark.parametrize("steps", [1, 2, 9, 10, BUCKETS_MAX, BUCKETS_MAX + 1, 5000])
def test_growth_is_that_of_the_steps_in_bounded_memory(steps: int) -> None:
    growth = StepSizes(2)
    growth.add(0, 10**9)  # before the first step
    for i in range(steps):
        growth.step()
        growth.add(0, 2 * i)
        growth.add(1, 1)
        growth.add(0, 2)
    assert growth.steps == steps and len(growth.per_step()) <= BUCKETS_MAX
    first, last = growth.tenths()
    assert first[1] == last[1] == 1
    tenth = max(1, len(growth.per_step()) // 10) * growth.width
    assert first[0] == pytest.approx(sum(2 * i + 2 for i in range(tenth)) / min(tenth, steps))
    assert last[0] == pytest.approx(2 * steps - min(tenth, steps) + 1, abs=growth.width)
    assert growth.per_step() == sorted(growth.per_step())


def test_names_and_open_calls_are_bounded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(log_statistics, "NAMES_MAX", 3)
    monkeypatch.setattr(log_statistics, "OPEN_MAX", 2)
    with EventLog.open(tmp_path / "log") as log:
        for i in range(9):
            log.append(f"kind {i}", i)
            log.append("call", intent(f"tool {i}"))
        found = statistics_of(list(log.records()))
    assert set(found.kinds) == {"kind 0", "call", "kind 1", OTHERS}
    assert found.kinds[OTHERS].records == 7
    assert {name: tool.open for name, tool in found.tools.items()} == {
        "tool 0": 1,
        "tool 1": 1,
        "tool 2": 1,
        OTHERS: 6,
    }
    assert (found.forgotten, len(found.open)) == (7, 2)


def test_what_makes_no_sense_is_counted_by_its_kind(tmp_path: Path) -> None:
    with EventLog.open(tmp_path / "log") as log:
        log.append("call", {"scope": 1})
        log.append("outcome", [1, 2])
        log.append("snapshot", {"step": "x"})
        log.append_snapshot({"step": -1})
        log.append("mine", "x")
        counted = statistics_of(list(log.records()))
    assert (counted.records, counted.unreadable, counted.is_run) == (5, 2, False)
    assert counted.checkpoints.count == 1
    assert (counted.steps, counted.calls, counted.tools) == (0, 0, {})


def test_nothing_at_all() -> None:
    counted = LogStatistics()
    counted.finish()
    assert (counted.records, counted.slow, counted.growth.tenths()) == (
        0,
        [],
        ([0.0] * 5, [0.0] * 5),
    )


def intent(tool: str) -> dict[str, Any]:
    return {
        "scope": "1",
        "tool": tool,
        "call_id": "",
        "digest": b"d",
        "occurrence": 1,
        "after_crash": "park",
        "size": 1,
    }


def test_the_slowest_fit_the_terminal_whatever_they_were_called_with(tmp_path: Path) -> None:
    with EventLog.open(tmp_path / "log") as log:
        log.append("run_started", {"run_id": "log", "task": 1, "uid": "u"})
        for i in range(3):
            args = [["long " * 50], {"wide": "\u6f22" * 90}]
            lsn = log.append("call", intent("a_tool_of_a_long_name_indeed") | {"args": args})
            log.append("outcome", {"call": lsn, "value": i})
    shown = call("logdump", "stats", "log", cwd=tmp_path).out
    lines = shown.partition("slowest")[2].partition("\n\n")[0].splitlines()[1:]
    assert len(lines) == 3
    assert all(columns(line.rstrip()) <= 80 and " ms " in line for line in lines), lines


@pytest.mark.parametrize(("times", "is_warned_of"), [(4, False), (6, True)])
def test_a_run_that_records_over_five_times_as_much_a_step_is_yellow(
    tmp_path: Path, times: int, is_warned_of: bool
) -> None:
    with EventLog.open(tmp_path / "log") as log:
        log.append("run_started", {"run_id": "log", "task": 1, "uid": "u"})
        for step in range(1, 21):
            log.append("step", {"step": step})
            log.append("note", "x" * (1000 * times if step > 10 else 1000))
    coloured = call("logdump", "stats", "log", cwd=tmp_path, env={"FORCE_COLOR": "1"}).out
    (line,) = [line for line in coloured.splitlines() if "in the first tenth" in line]
    assert ("\x1b[33m" in line) == is_warned_of


def test_a_call_inside_another_one_is_not_at_work_beside_it(tmp_path: Path) -> None:
    with EventLog.open(tmp_path / "log") as log:
        log.append("run_started", {"run_id": "log", "task": 1, "uid": "u"})
        outer = log.append("call", intent("outer"))
        inner = log.append("call", intent("inner") | {"scope": f"call {outer}"})
        log.append("outcome", {"call": inner, "value": 1})
        log.append("outcome", {"call": outer, "value": 1})
        found = list(log.records())
    counted = statistics_of(found).time
    assert counted.parallel_ns == 0
    assert (counted.at_work_ns, counted.in_tools_ns, 0, 0) == spent(found)
