"""The conformance harness of the package crashresume, on agents built with this library.

That harness raises an exception where it wants the subject to die. Here the subject is a process:
the exception stays on the harness's side, and the process is killed with SIGKILL instead, while the
tool that made the effect waits for its answer.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

crashresume = pytest.importorskip(
    "crashresume", reason="crashresume is not installed (pip install 'agent-eventlog[test]')"
)

INPUTS = ["a", "b", "c", "b"]  # the last one is a new input like an old one

# One run that takes one input a step. It asks the process at the other end of its pipes for inputs,
# for effects, and whether an effect is there.
AGENT = """
import asyncio, json, sys
from recovery import CheckpointStore, RecoverableAgent, Resolution, tool

def ask(what, value):
    print(json.dumps([what, value]), flush=True)
    return json.loads(sys.stdin.readline())

def look(call):
    return Resolution.outcome("done") if ask("is there", call.args[0]) else Resolution.retry()

@tool(reconcile=look)
def charge(key):
    return ask("effect", key)

@tool(after_crash="retry")
def receive(number, state):
    return ask("receive", [number, state])

async def agent(run):
    async for step in run.steps():
        item = await run.call(receive, step, dict(run.state))
        run.messages.append(item)
        await run.call(charge, f"charge {step} {item}")
        run.state["done"] = [*run.state.get("done", []), item]
        run.state["log"] = len(run.messages)

agent = RecoverableAgent(agent, CheckpointStore(sys.argv[1]), checkpoint_every_n=2)
asyncio.run(agent.run_with_recovery("charge", sys.argv[2]))
"""
PLAIN = (
    AGENT.replace("async def", "def")
    .replace("async for", "for")
    .replace("await ", "")
    .replace("asyncio.run(agent.run_with_recovery(", "(agent.run_with_recovery_sync(")
)


def live(program: str, args: list[str], takes: int, gives: int, *not_its_own: int) -> None:
    """In a forked process, which has the library: be a program with these pipes."""
    for fd in not_its_own:
        os.close(fd)
    sys.argv = ["-c", *args]
    sys.stdin, sys.stdout = os.fdopen(takes), os.fdopen(gives, "w")
    exec(compile(program, "<agent>", "exec"), {"__name__": "__main__"})  # noqa: S102 - see above


class Subject:
    """The agent as a process, for the harness: `step` returns when it asks for the next input."""

    def __init__(self, context: Any, program: str, home: Path) -> None:
        self._context = context
        self._state: Any = None
        self._inputs = 0
        takes, ours = os.pipe()
        heard, gives = os.pipe()
        pipes = (takes, gives, ours, heard)
        self._process = multiprocessing.get_context("fork").Process(
            target=live, args=(program, [str(home), context.run_id], *pipes)
        )
        self._process.start()
        os.close(takes)
        os.close(gives)
        self._heard, self._said = os.fdopen(heard), os.fdopen(ours, "w")
        self._wanted = self._until_it_asks_for_input()

    def step(self, item: str) -> None:
        self._inputs += 1
        if self._inputs == self._wanted:  # else it is one that the run has already had
            self._answer(item)
            self._wanted = self._until_it_asks_for_input()

    def state(self) -> Any:
        """What the run had in `run.state` when it last asked for an input."""
        return self._state

    def close(self) -> None:
        self._process.kill()
        self._process.join()
        self._heard.close()
        with suppress(BrokenPipeError):
            self._said.close()

    def _until_it_asks_for_input(self) -> int:
        while True:
            line = self._heard.readline()
            assert line, "the agent has ended"
            match json.loads(line):
                case ["receive", [number, state]]:
                    self._state = state
                    return int(number)
                case ["effect", key]:
                    self._effect(key)
                case ["is there", key]:
                    self._answer(key in list(self._context.effects.keys()))
                case what:
                    raise AssertionError(f"the agent says {what}")

    def _effect(self, key: str) -> None:
        try:
            self._context.effect("charge", key, key=key)
        except crashresume.InjectedCrash:
            self.close()
            raise
        self._answer("done")

    def _answer(self, value: Any) -> None:
        self._said.write(json.dumps(value) + "\n")
        self._said.flush()


Conform = Callable[..., Any]


@pytest.fixture
def conform_process(tmp_path: Path) -> Iterator[Conform]:
    """Runs the harness on a program; all processes are gone afterwards."""
    subjects: list[Subject] = []

    def run(program: str, inputs: list[str] = INPUTS) -> Any:
        def factory(context: Any) -> Subject:
            subjects.append(Subject(context, program, tmp_path))
            return subjects[-1]

        return crashresume.conform(factory, inputs)

    yield run
    for subject in subjects:
        subject.close()


@pytest.mark.parametrize("program", [AGENT, PLAIN], ids=["async", "plain"])
def test_an_agent_with_this_library_conforms(conform_process: Conform, program: str) -> None:
    report = conform_process(program)
    assert report.passed, str(report)
    assert report.crash_points == len(INPUTS)


@pytest.mark.parametrize(
    ("good", "bad", "kind"),
    [
        pytest.param(
            "@tool(reconcile=look)",
            "@tool(after_crash='retry')",
            "effect_replayed",
            id="says that a charge is safe to repeat",
        ),
        pytest.param(
            "CheckpointStore(sys.argv[1])",
            "CheckpointStore()",
            "effect_replayed",
            id="keeps its runs in memory",
        ),
        pytest.param(
            "await run.call(charge, ",
            "ask('effect', ",
            "effect_replayed",
            id="makes the effect outside of a call",
        ),
        pytest.param(
            '*run.state.get("done", []), item',
            "*seen, (seen.append(item), item)[1]",
            "resume_diverged",
            id="keeps in a variable what a checkpoint is to restore",
        ),
    ],
)
def test_an_agent_that_is_wrong_does_not(
    conform_process: Conform, good: str, bad: str, kind: str
) -> None:
    assert good in AGENT
    program = "seen = []\n" + AGENT.replace(good, bad)
    report = conform_process(program, INPUTS[:3])
    assert {found.kind for found in report.findings} == {kind}
