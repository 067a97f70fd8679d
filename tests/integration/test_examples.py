"""The examples: run as users run them, and killed at every point."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from recovery import Budget, CheckpointStore, RecoverableAgent, tool
from recovery.control import send
from recovery.ops.fork import fork
from recovery.testing import crash_everywhere
from tests.support.forked import forked
from tests.support.lives import forget
from tests.support.paths import ROOT

EXAMPLES = ROOT / "examples"
WISHES = ["train to Oslo", "hotel", "boat trip", "museum"]


def run(name: str, *args: object) -> str:
    """What the example prints."""
    done = forked(EXAMPLES / f"{name}.py", *map(str, args), place=EXAMPLES)
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_by_python(name: str, *args: object) -> str:
    """The same, in a process that has imported nothing."""
    command = [sys.executable, str(EXAMPLES / f"{name}.py"), *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout


FOUND = "sunny in Lisbon\npaid 10\nno answer\n"
RESEARCHED = """\
What do otters eat? Crabs and sea urchins.
Where do otters sleep? On their backs, holding hands.
Why is the sky green? (nothing is known about 'Why is the sky green?')
research: finished
research: finished
research: failed
"""
LEFT = "{'last': 'sleeper at 20:00', 'left': Decimal('71.00'), 'seen': 2}\n"
UNDONE = "no boat to be had; cancelled: hotel-2, flight-1\n"
SAID = "Otters hold hands. STOP "


# What each prints the first time, and when it is run again.
PRINTED = {
    "calls": (f"{FOUND}payments: [10]\n", f"{FOUND}payments: []\n"),
    "child_runs": (RESEARCHED, RESEARCHED),
    "values": (LEFT, LEFT),
    "undo": (UNDONE, UNDONE),
    "streaming": (
        f"{SAID}\n1 questions asked. Answer: {SAID}\n",
        f"\n0 questions asked. Answer: {SAID}\n",
    ),
}


@pytest.mark.parametrize("name", PRINTED)
def test_it_runs_and_its_result_stays(name: str, tmp_path: Path) -> None:
    assert (run_by_python(name, tmp_path), run(name, tmp_path)) == PRINTED[name]


# -- killed at every point


@pytest.fixture
def example(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    yield __import__(request.param)
    del sys.modules[request.param]
    forget()


def of(agent: Any, **options: Any) -> Callable[[], RecoverableAgent]:
    return lambda: RecoverableAgent(agent, CheckpointStore(), **options)


def calls(example: Any) -> dict[str, Any]:
    def reset() -> None:
        example.refusals[:] = ["503", "503"]
        example.bank.clear()

    return {
        "agent": of(example.agent),
        "task": "Lisbon",
        "setup": reset,
        "effects": lambda: list(example.bank.values()),
    }


def undo(example: Any) -> dict[str, Any]:
    def reset() -> None:
        example.bookings.clear()
        example.cancellations.clear()

    return {
        "agent": of(example.trip, checkpoint_every_n=1),
        "task": ["flight", "hotel", "boat"],
        "setup": reset,
        "effects": lambda: [*example.bookings.values(), *example.cancellations.values()],
    }


def streaming(example: Any) -> dict[str, Any]:
    example.show = lambda text: None
    return {"agent": example.assistant, "task": "why?"}


def values(example: Any) -> dict[str, Any]:
    return {
        "agent": of(example.agent, checkpoint_every_n=1),
        "task": "Lisbon",
        "setup": example.booked.clear,
        "effects": lambda: list(example.booked),
    }


def waiting(example: Any) -> dict[str, Any]:
    def answer(store: CheckpointStore, run_id: str) -> None:
        send.signal(store, run_id, "shipped", "4711", key="shipped")
        send.signal(store, run_id, "answer", "yes", key="answer")

    return {
        "agent": of(example.agent),
        "setup": example.mails.clear,
        "effects": lambda: list(example.mails),
        "answer": answer,
    }


def approvals(example: Any) -> dict[str, Any]:
    def answer(store: CheckpointStore, run_id: str) -> None:
        for call in send.pending(store, run_id):
            (send.approve if call.args[0] < 1000 else send.deny)(store, run_id, call)

    return {
        "agent": of(example.agent),
        "setup": example.paid.clear,
        "effects": lambda: list(example.paid),
        "answer": answer,
    }


def child_runs(example: Any) -> dict[str, Any]:
    return {"agent": of(example.researcher), "task": example.QUESTIONS}


def budget(example: Any) -> dict[str, Any]:
    return {"agent": of(example.ponder, budget=Budget(tokens=1000)), "task": "otters"}


def time_travel(example: Any) -> dict[str, Any]:
    return {"agent": of(example.plan, checkpoint_every_n=1), "task": WISHES}


SWEPT = calls, undo, streaming, values, waiting, approvals, child_runs, budget, time_travel
EXECUTED = {"child_runs": {"search": 5, "ask_model": 2}, "budget": {"think": 20}}


@pytest.mark.parametrize("points", [10, pytest.param("all", marks=pytest.mark.crash)])
@pytest.mark.parametrize(
    ("example", "swept"), [(one.__name__, one) for one in SWEPT], indirect=["example"]
)
def test_it_survives_being_killed_anywhere(
    example: Any, swept: Any, points: Any, rng: random.Random
) -> None:
    """The result, and what took place outside, are the same wherever the process dies."""
    report = crash_everywhere(
        **swept(example), points=points, power_loss=True, seed=rng.randrange(1 << 20)
    )
    assert report.ok, str(report)
    assert report.points > 4
    name = swept.__name__
    assert report.effects == EXECUTED.get(name, report.effects)


def test_a_child_in_doubt_is_settled_by_the_operator_of_the_crash_test() -> None:
    done: list[str] = []

    @tool
    def tell(what: str) -> str:
        done.append(what)
        return what

    async def sub(run: Any) -> str:
        return str(await run.call(tell, run.task))

    async def agent(run: Any) -> list[str]:
        return [await run.child(sub, "a"), await run.child(RecoverableAgent(sub), "b")]

    report = crash_everywhere(
        agent, task="t", setup=done.clear, effects=lambda: done, points=20, power_loss=True
    )
    assert report.ok, str(report)
    assert {found.tool for found in report.findings if found.kind == "in doubt"} == {"tell"}


# -- what a person does


def test_the_waiting_agent_waits_in_no_process(tmp_path: Path) -> None:
    parked = "run 'order-17' is parked until something happens outside:\n  signal 'shipped'\n"
    for _ in range(2):
        assert run("waiting", tmp_path).startswith(parked)
    for _ in range(2):  # a sender that is not sure sends again
        assert run("waiting", tmp_path, "ship", "4711") == ""
    said = run("waiting", tmp_path).splitlines()
    assert said[:2] == ["mail: Your parcel 4711 is on its way.", "mail: Did it arrive?"]
    assert said[3].startswith("  signal 'answer', until ")
    run("waiting", tmp_path, "answer", "yes")
    for _ in range(2):
        assert run("waiting", tmp_path) == "4711: yes\n"


def test_the_paying_agent_pays_what_was_approved(tmp_path: Path) -> None:
    assert "approval of LSN" in run("approvals", tmp_path)
    for call, *decision in (
        ("pay(40, 'bob')", "yes", "as agreed"),
        ("pay(9999, 'mallory')", "no", "who is that?"),
    ):
        shown = run("approvals", tmp_path, "show")
        assert call in shown
        run("approvals", tmp_path, decision[0], shown.partition(":")[0], decision[1])
        run("approvals", tmp_path)
    assert run("approvals", tmp_path).splitlines() == [
        "paid 10 to alice",
        "paid 40 to bob",
        "did not pay mallory: who is that?",
    ]


def test_a_budget_parks_once_and_ends_when_the_limit_is_lifted() -> None:
    parked, _, finished = run("budget").partition("\n\n")
    assert "run 'run_001' is parked, its budget is used up:\n  tokens: 203 of 200" in parked
    assert "Used so far: 7 steps, 7 attempts, 203 tokens, cost 0.0013" in parked
    used = "20 steps, 20 attempts, 370 tokens, cost 0.0025"
    assert finished.startswith(f"Hm. Why? And then? For {used}")


def test_the_three_choices_after_a_divergence(tmp_path: Path) -> None:
    lines = run("divergence", tmp_path).splitlines()
    assert lines[0] == "killed after: ['Hello to ann', 'Hello to bob']"
    assert "  different: args[1]: 'Hello' -> 'Good morning'" in lines
    for choice in ("accept", "fork", "abort"):
        assert any(line.startswith(f"  {choice}  ") for line in lines), lines
    assert lines[-5:-1] == [
        "sent to ann",
        "sent to bob",
        "sent to carl",
        "all in all: ['Hello to ann', 'Hello to bob', 'Good morning to bob', "
        "'Good morning to carl']",
    ]
    assert lines[-1] == "sent to ann sent to bob"  # the fork executes nothing anew


def test_a_mistaken_edit_is_told_and_a_harmless_one_finishes_the_run(tmp_path: Path) -> None:
    assert run("edits", tmp_path).splitlines() == [
        "refunding 1000 cents for order-1",
        "refunding 2500 cents for order-2",
        "the process dies here",
        "stopped: args[1]: 2500 -> 250000",
        "refunding 4000 cents for order-3",
        "['refunded order-2', 'refunded order-1', 'refunded order-3']",
    ]


def test_the_trips_are_planned_and_stay_planned_as_the_page_shows(tmp_path: Path) -> None:
    first, second = (run("time_travel", tmp_path) for _ in range(2))
    assert "rich:   train to Oslo for 90, hotel for 120, boat trip for 60, museum for 15" in first
    assert "cheap:  train to Oslo for 90, hotel for 120, museum for 15" in first
    assert "asked for them: boat trip, museum, museum\n" in first
    assert "rich comes from trip, step 2: a gift (ann)" in first
    assert "4 differences, the first in step 3:" in first
    assert second == first.replace("boat trip, museum, museum\n", "nothing\n")
    page = " ".join((ROOT / "docs/time-travel.md").read_text().split())
    shown = " ".join(first[first.index("trip: 4 steps") :].split("4     steps")[0].split())
    assert shown.partition(" 3 messages")[0] in page


@pytest.mark.parametrize("example", ["time_travel"], indirect=True)
def test_forks_ask_for_nothing_twice(example: Any) -> None:
    store = CheckpointStore()
    agent = RecoverableAgent(example.plan, store, checkpoint_every_n=3)
    agent.run_with_recovery_sync(WISHES, "trip")
    for step in range(5):
        example.asked.clear()
        fork(store, "trip", f"fork-{step}", at_step=step)
        agent.run_with_recovery_sync(WISHES, f"fork-{step}")
        assert example.asked == WISHES[step:]
