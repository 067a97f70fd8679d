"""Programs that crash at every call of the disk: before it, torn in it, and with the power lost."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.model import language as l
from tests.model.lived import events_of
from tests.model.printer import printed
from tests.model.rules import judged
from tests.model.schedule import Die, Harm, Life, Power, Schedule, Signal, Stop

PAY = l.Tool("pay", (l.Do("r", l.Task()), l.Sleep(1, True)), l.Var("r"))
READ = l.Tool("read", (l.Do("r", l.Task()), l.Sleep(1, True)), l.Var("r"), "point", False, "retry")
ASK = replace(PAY, name="ask", approval=True)
BOOK = replace(PAY, name="book", undo=True, after_crash="reconcile")
WORDS = l.Tool("words", (l.Do("r", l.Task()),), l.Var("r"), after_crash="retry", chunks=3)
ORDER = l.Tool(
    "order",
    (l.Call("a", 0, l.Lit("inside")), l.Trouble(1, "ValueError"), l.Call("b", 1, l.Var("a"))),
    l.Var("b"),
    after_crash="retry",
    retry=2,
)
TOOLS = (PAY, READ, ASK, BOOK, WORDS, ORDER)


def call(var: str, tool: int, arg: str = "x") -> l.Call:
    return l.Call(var, tool, l.Lit(arg))


def branch(*body: l.Term, pause: int = 0) -> l.Branch:
    return l.Branch(pause, body, l.Lit("b"))


def agent(*steps: tuple[l.Term, ...], prologue: tuple[l.Term, ...] = ()) -> l.Agent:
    return l.Agent(prologue, steps, (l.Get("a"), l.Last()))


SLEEPER = agent((l.Sleep(20), call("v9", 0, "too late")))
PROGRAMS = {
    "a child": (
        agent((l.Child("v1", 1, l.Lit("c")), call("v2", 0)), (call("v3", 1),)),
        agent((call("v9", 0, "of a child"),)),
    ),
    "a child that is too slow": (
        agent(
            (l.Timeout("v1", 3, (l.Child("v2", 1, l.Lit("c")),)), call("v3", 0)),
        ),
        SLEEPER,
    ),
    "a child that is given up": (
        agent(
            (
                l.Race("v1", (branch(l.Child("v2", 1, l.Lit("c"))), branch(l.Sleep(3))), True),
                call("v3", 0),
            ),
        ),
        SLEEPER,
    ),
    "signals and an approval": (
        agent(
            (l.Wait("v1", "p"), call("v2", 2, "a"), l.Say(l.Var("v1"))),
            (l.Wait("v3", "q", 10), l.Wait("v4", "p"), l.Say(l.Var("v4"))),
        ),
    ),
    "state and messages": (
        agent(
            (call("v2", 1), l.Put("a", l.Var("v2")), l.Say(l.Var("v1"))),
            (l.Put("c", l.Var("v1"), "add"), l.Say(l.Get("a")), call("v3", 0)),
            (l.Put("c", l.Last(), "add"), l.Say(l.Get("c"), True), call("v4", 0)),
            prologue=(l.Say(l.Lit("system")), call("v1", 1, "plan"), l.Put("a", l.Lit("0"))),
        ),
    ),
    "several at once": (
        agent(
            (
                l.Par(
                    "v1",
                    "gather",
                    (
                        branch(call("v2", 0, "1"), call("v3", 1, "2")),
                        branch(call("v4", 1, "3"), call("v5", 0, "4"), pause=1),
                        branch(l.Sleep(2), call("v6", 0, "5")),
                    ),
                ),
                l.Par("v7", "recorded", (branch(call("v8", 1, "6")), branch(call("v9", 0, "7")))),
                l.Say(l.Var("v7")),
            ),
            (call("v10", 5),),
        ),
    ),
    "undo": (agent((call("v1", 3), call("v2", 3, "y"), l.Undo("v3"), call("v4", 0))),),
    "a stream and what is asked for": (
        agent(
            (
                l.Stream("v1", 4, l.Lit("s"), 2),
                l.Ask("v2", "uuid"),
                l.Call("v3", 0, l.Var("v2")),
                l.Say(l.Var("v1")),
            ),
        ),
    ),
}
SIGNALS = (Signal(1, "p"), Signal(3, "p"))


def sweep(name: str, every: int, keep: int = 0) -> None:
    program = l.Program(TOOLS, PROGRAMS[name], every=1, keep=keep)
    calls = len(judged(program, Schedule((), SIGNALS)).lived.processes[0].flights)
    assert calls > 8
    for at in range(0, calls, every):
        lives = (Life((Die(at), Power(at))), Life((Die(at, 30),)), Life((Die(at),)))
        for one in lives[: 3 if every == 1 else 2]:  # the last one only where there is time
            schedule = Schedule((one,), SIGNALS)
            found = judged(program, schedule).findings
            assert not found, f"{found}\n{printed(program)}\n{schedule}"


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_dies_at_calls_of_the_disk(name: str) -> None:
    sweep(name, 24)


@pytest.mark.crash
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_dies_at_every_call_of_the_disk(name: str) -> None:
    sweep(name, 1)


@pytest.mark.parametrize("seconds", [0, 0.5, 1, 1.5, 2])
def test_a_stop_at_any_time_cuts_no_side_effect_short(seconds: float) -> None:
    """Nor a call inside it that may be repeated: the side effect waits for that."""
    order = l.Tool("order", (call("a", 1, "inside"), call("b", 0, "paid")), l.Var("b"))
    program = l.Program((*TOOLS, order), (agent((call("v1", len(TOOLS)),)),), every=1)
    found = judged(program, Schedule((Life((Stop(seconds),)),)))
    assert not found.findings, f"{found.findings}\n{printed(program)}"
    assert [end.how for end in found.lived.ends] == ["parked", "finished"]


def test_a_pruned_run_dies_at_calls_of_the_disk() -> None:
    sweep("state and messages", 24, keep=1)


@pytest.mark.crash
@pytest.mark.parametrize("name", ["state and messages", "several at once"])
def test_a_pruned_run_dies_at_every_call_of_the_disk(name: str) -> None:
    sweep(name, 1, keep=1)


def test_an_earlier_checkpoint_stands_in_for_one_that_is_damaged() -> None:
    """Also where all that the earlier one does not need is gone."""
    (main,) = PROGRAMS["state and messages"]
    main = replace(main, steps=main.steps * 4)
    program, cut = l.Program(TOOLS, (main,), every=1, keep=1), 0
    calls = len(judged(program, Schedule()).lived.processes[0].flights)
    for at in range(calls // 3, calls, 40):
        schedule = Schedule((Life((Die(at), Harm(at))),))
        found = judged(program, schedule)
        assert not found.findings, f"{found.findings}\n{printed(program)}\n{schedule}"
        first = min(lsn for lsn, _ in events_of(found.lived.disks[0]))
        cut += first > 1 and found.lived.processes[0].was_hit("damage")
    assert cut > 2
