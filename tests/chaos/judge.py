"""Decides from logs, effects and what each worker noted what became of the runs."""

from __future__ import annotations

import json
import statistics
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from recovery import CheckpointStore
from tests.chaos.agents import WIRE_EVERY, digest, pays_by

SNAPSHOT = "snapshot"


class Death(NamedTuple):
    """When a worker died, and whether the others could see that (else they wait for its lease)."""

    when: float
    pid: int
    is_seen: bool


@dataclass
class Verdict:
    """``bad``: what must not be, a line each. ``restarts_s``: from the death of each worker that
    had a run in hand to that run's next new step, by whether the death could be seen."""

    runs: int
    faults: Counter[str] = field(default_factory=Counter)
    takeovers: int = 0
    effects: int = 0
    doubts: int = 0
    acknowledged: int = 0
    bad: list[str] = field(default_factory=list)
    restarts_s: dict[bool, list[float]] = field(default_factory=lambda: defaultdict(list))

    def __str__(self) -> str:
        faults = ", ".join(f"{count} {name}" for name, count in sorted(self.faults.items()))
        lines = [
            f"{self.runs} runs; faults: {faults or 'none'}",
            f"{self.takeovers} changes of owner, {self.effects} effects, {self.doubts} calls in "
            f"doubt, {self.acknowledged} commits acknowledged",
        ]
        for seen, text in (
            (True, "a death that is seen"),
            (False, "the end of a dead one's lease"),
        ):
            if took := self.restarts_s[seen]:
                middle = statistics.median(took)
                lines.append(
                    f"from a worker's death to the run's next new step, by {text}: "
                    f"median {middle:.2f} s, longest {max(took):.2f} s, {len(took)} times"
                )
        return "\n".join([*lines, *(f"BAD: {one}" for one in self.bad)])


def notes(place: Path, name: str) -> list[list[Any]]:
    """What the workers have noted."""
    file = place / name
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def judge(
    store: CheckpointStore, place: Path, steps: dict[str, int], deaths: list[Death]
) -> Verdict:
    """Judge the runs, each with its number of ``steps``; see Verdict."""
    verdict = Verdict(len(steps))
    appended: dict[str, dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
    calls: dict[str, list[tuple[float, int, str]]] = defaultdict(list)
    for when, pid, run_id, epoch, what, kind in notes(place, "appends"):
        appended[run_id][what].add(epoch)
        if what:
            calls[run_id].append((when, pid, kind))
    committed: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for _, _, run_id, epoch, lsn in notes(place, "commits"):
        committed[run_id].append((epoch, lsn))
        verdict.acknowledged += 1
    there = store.backend.run_ids()
    for run_id, count in steps.items():
        state = store.run(run_id).status().state if run_id in there else "missing"
        if state != "finished":
            verdict.bad.append(f"{run_id}: {state}, not finished")
            continue
        result = _judge_log(store, run_id, appended[run_id], committed[run_id], verdict)
        _judge_effects(place, run_id, count, result, verdict)
        _time_restarts(calls[run_id], deaths, verdict)
    return verdict


def _judge_log(
    store: CheckpointStore,
    run_id: str,
    appended: dict[str, set[int]],
    committed: list[tuple[int, int]],
    verdict: Verdict,
) -> Any:
    """Whether each record is of the owner at that time, and none is lost; the run's result."""
    reader = store.backend.read(run_id)
    assert reader is not None
    with reader:
        records = list(reader.records())
    writer, first_of, result = 0, {}, None  # type: int, dict[int, int], Any
    for one in records:
        if one.kind in (SNAPSHOT, "submitted"):  # which no owner notes
            continue
        epochs = [
            epoch for epoch in appended[digest(one.kind, bytes(one.packed))] if epoch >= writer
        ]
        if not epochs:
            verdict.bad.append(f"{run_id}: LSN {one.lsn} is of a stale owner, or of nobody")
            return None
        writer = min(epochs)
        first_of.setdefault(writer, one.lsn)
        if one.kind == "run_finished":
            result = one.body["result"]
    verdict.takeovers += len(first_of) - 1
    if [one.lsn for one in records] != list(range(1, len(records) + 1)):
        verdict.bad.append(f"{run_id}: LSNs are missing")
    # What an owner was told is durable is before the first record of the next owner.
    for epoch, lsn in committed:
        later = [at for by, at in first_of.items() if by > epoch]
        if lsn >= min(later, default=len(records) + 1):
            verdict.bad.append(f"{run_id}: owner {epoch} was told that LSN {lsn} is durable: lost")
    return result


def _judge_effects(place: Path, run_id: str, steps: int, result: Any, verdict: Verdict) -> None:
    """Whether each call took effect once, or is in doubt in the run's own record."""
    lines = [json.loads(line) for line in (place / f"bank-{run_id}").read_text().splitlines()]
    fences = [fence for fence, *_ in lines]
    if fences != sorted(fences):
        verdict.bad.append(f"{run_id}: an effect of an old fence after one of a newer")
    made = Counter((tool, step) for _, key, tool, step in lines if key)
    verdict.effects += made.total()
    told = {(tool, step): how for tool, step, how in result or ()}
    wanted = {(pays_by(step).__name__, step) for step in range(1, steps + 1)}
    wanted |= {("wire", step) for step in range(WIRE_EVERY, steps + 1, WIRE_EVERY)}
    if told.keys() != wanted:
        verdict.bad.append(f"{run_id}: it says that it made {sorted(told)}")
    for call in wanted | made.keys():
        in_doubt = told.get(call) == "in doubt"
        verdict.doubts += in_doubt
        if made[call] > 1 or (made[call] == 0 and not in_doubt):
            verdict.bad.append(f"{run_id}: the effect {call[0]} {call[1]}: {made[call]} times")


def _time_restarts(
    calls: list[tuple[float, int, str]], deaths: list[Death], verdict: Verdict
) -> None:
    """How long the run made no new step after each death of a worker that had it."""
    for died in deaths:
        before = [pid for when, pid, _ in calls if when < died.when]
        after = [
            when
            for when, pid, kind in calls
            if when > died.when and pid != died.pid and kind == "call"
        ]
        if before and before[-1] == died.pid and after:
            verdict.restarts_s[died.is_seen].append(min(after) - died.when)
