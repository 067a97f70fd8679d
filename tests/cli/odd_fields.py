"""Every field of every record with every kind of value, and what is made of it.

A run whose log holds one odd value, beside a sound run in the same store: whatever the value is,
a command ends with a code that it documents, and what it says of the store has the sound run. Who
resumes the run gets an error of ours, or the run goes on.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator
from dataclasses import MISSING, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from eventlog import EventLog, LogError
from recovery import CheckpointStore, RecoverableAgent, RecoveryError, Run
from recovery.history import state_delta as state
from recovery.journal import events
from recovery.journal.encoding import encode
from recovery.values.pack import pack
from tests.cli.commands import how, registered
from tests.cli.fuzz import check
from tests.cli.harness import call

FORGED = "next: rm"  # a line as ours
HUGE = 10**6000  # more digits than Python turns into text
ODD: dict[str, Any] = {
    "nothing": None,
    "yes": True,
    "negative": -1,
    "beyond 64 bits": 1 << 80,
    "huge": HUGE,
    "half": 1.5,
    "infinite": math.inf,
    "no number": math.nan,
    "empty": "",
    "text": "a",
    "two lines": f"a\n{FORGED}",
    "terminal": "\x1b[2J",
    "long": "x" * 100_000,
    "bytes": b"\xff",
    "empty list": [],
    "list": [1.5, None, HUGE],
    "pairs": [[HUGE, None], [1, 2]],
    "map": {"a": HUGE},
    "map of lists": {"uid": [1], "run_id": 5, 7: HUGE},
    "date": datetime.now(UTC),
    "set": {1},
    "tuple": (1, 2),
}
ABSENT = "absent"
UID, DIGEST = "00" * 16, bytes(16)

# A sound record of each kind, in an order that makes sense as far as there is one.
SOUND: list[Any] = [
    events.RunStarted("odd", "task", UID),
    events.MessagesChanged(0, 0, ["hello"]),
    events.ValueRecorded("1", "time", 1, 5.0),
    events.StepStarted(1),
    events.CallIntended("1", "search", "", DIGEST, 1, "retry", [["a"], {"b": 1}], 9),
    events.CallReturned(5, {"found": [1]}, [10, 20, 0.5]),
    events.CallIntended("1", "pay", "c1", DIGEST, 1, "park", [[5], {}], 9, "back", asks_until=9e9),
    events.CallDecided(7, True, "ann", "fine", 1, 1_777_885_200_000_000_000, UID),
    events.AttemptFailed(7, 1, "builtins.OSError", "busy", 1.0, "tb"),
    events.CallRetried(7, 2),
    events.CallFailed(7, "builtins.ValueError", "no", ["no"], "tb", ["builtins.OSError"], {"a": 1}),
    events.CallIntended("1", "child", "", DIGEST, 1, "park", [["a", "t", "n"], {}], 9, "", "kid"),
    events.ChildStarted(12, "kid"),
    events.CallResolved(12, "outcome", 5, "ann", "looked"),
    events.StepStarted(2),
    events.CallIntended("2", "wait_for", "", DIGEST, 1, "wait", [["a"], {}], 9),
    events.SignalTaken(17, 5, None, "a", 1, UID, None, 5),
    events.AgentRaised("builtins.KeyError", "k", "tb", 2, "a.py:5 in f", True),
    events.RunResumed(1, 2, "crash"),
    events.RecordsLost(22),
    events.RecordsLost(0),
    events.LogRepaired([[21, 22]], "ann", "disk", "backup"),
    events.DivergenceAccepted("ann", "edited", True),
    events.HistoryDropped([3]),
    events.CallIntended("2", "mail", "", DIGEST, 1, "park", [["x"], {}], 9),
    events.CallAbandoned(26, 1, "timeout", False, True),
    events.RunParked([26], wake_at=9e9),
]
ENDS: list[Any] = [
    events.RunFinished({"done": 1}, 0, 0),
    events.RunFailed("builtins.ValueError", "no", "tb", 26),
    events.RunUndone("ann", "why"),
    events.RunCancelled("ann", "why", [26], 1),
]
# What a checkpoint carries beside the state: one item of each kind there is.
CARRIED: dict[str, Any] = {
    "progress": [1, 2, 0, [10, 20], 0.5, 0, 0, "search"],
    "signals": [[UID, "a", 1]],
    "retries": ["run x", "retried"],
    "errors": [1, 1, 3, 5, False, True, 1, 0, "E", "m", "a.py"],
    "code": "c",
}
CHECKPOINT: dict[str, Any] = {
    "version": 1,
    "checkpoint_id": "c",
    "run_id": "odd",
    "step": 1,
    "timestamp": 1.0,
    "recoveries": 0,
    "prologue": [1],
    "index": 1,
    "bases": [],
    "keep": 0,
    "messages": [],
    "state": {},
    "tool_results": None,
    "carried": CARRIED,
    "removed": [],
    "timestamp_text": "now",
    "checksum": state.checksum("odd", 1, {}, (b"", b"")),
}


class Case(NamedTuple):
    """Which field of which record is odd, and how; "checkpoint", "carried": of that."""

    record: str
    field: str
    value: str


def cases() -> Iterator[Case]:
    """All of them; of kinds that are there several times, the first."""
    names = {event.kind: [one.name for one in fields(event)] for event in [*SOUND, *ENDS]}
    for record, inside in (names | {"checkpoint": CHECKPOINT, "carried": CARRIED}).items():
        for field in inside:
            yield from (Case(record, field, value) for value in (*ODD, ABSENT))


def make(store: Path, case: Case) -> None:
    """A store with the odd run and a sound one."""
    shutil.rmtree(store, ignore_errors=True)
    odd = next((one for one in [*SOUND, *ENDS] if one.kind == case.record), None)
    with EventLog.open(store / "odd") as log:
        for event in [*SOUND, *(one for one in ENDS if one is odd)]:
            body = {
                one.name: getattr(event, one.name)
                for one in fields(event)
                if getattr(event, one.name) is not None or one.default is MISSING
            }
            body = _odd(body, case) if event is odd else body
            log.append(event.kind, pack(body, "record"))
            if event == events.StepStarted(2):
                carried = _odd(CARRIED, case) if case.record == "carried" else CARRIED
                whole = CHECKPOINT | {"carried": carried}
                whole = _odd(whole, case) if case.record == "checkpoint" else whole
                log.append_snapshot(pack(whole, "checkpoint"))
        log.commit()
    with EventLog.open(store / "sound") as log:
        for event in (events.RunStarted("sound", "task", "11" * 16), events.StepStarted(1)):
            log.append(*encode(event))
        log.commit()


def _odd(body: dict[str, Any], case: Case) -> dict[str, Any]:
    if case.value == ABSENT:
        return {name: value for name, value in body.items() if name != case.field}
    return body | {case.field: ODD[case.value]}


def commands() -> list[list[str]]:
    """All that can be called on a run or a store, those that write included."""
    found = []
    for command in registered():
        about = how(command)
        words = [about.words, *(() if about.elsewhere else about.variants)]
        if not about.elsewhere:
            found += [[*command.split(), *about.args("odd", word)] for word in words]
    found += [
        ["logdump", "timeline", "odd", "-o", "../page.html"],
        ["recovery", "doctor", "--store", "."],
    ]
    return found


def wrong(case: Case, folder: Path, called: list[list[str]]) -> Iterator[str]:
    """What commands do that they must not."""
    store = folder / "store"
    make(store, case)
    for args in called:
        about = how(" ".join(args[:2]))
        try:
            done = call(args[0], *args[1:], cwd=store)
            check(done)
            shown = (done.out + done.err).splitlines()
            assert not [line for line in shown if line.startswith(FORGED)], "forged"
            if (
                about.of_store
                and not {"gc", "status"} & {*args}
                and "--limit" not in args
                and len(args) == 4
            ):
                assert "sound" in done.out, done.out + done.err
        except BaseException as exc:
            what = f"{case.record}.{case.field} = {case.value}"
            yield f"{what}: {' '.join(args)}: {type(exc).__name__}: {str(exc)[-300:]}"
        if about.writes:
            make(store, case)
    try:
        RecoverableAgent(_agent, CheckpointStore(store), 1).run_with_recovery_sync("task", "odd")
    except (RecoveryError, LogError):
        pass
    except Exception as exc:
        yield f"{case}: resumed: {exc!r}"


async def _agent(run: Run) -> str:
    run.messages.append("hello")
    async for step in run.steps():
        if step == 3:
            return "done"
    return ""
