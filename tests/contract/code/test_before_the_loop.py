"""State and messages are the restored ones from the first line of the agent function.

Each idiom is written as people write it. It is killed at every point where a process can die; the
result, the state, the messages and what took place outside are those of the run that never crashed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from recovery import CheckpointStore, InDoubtError, RecoverableAgent, Resolution, current_call, tool
from recovery.errors import DivergenceError
from recovery.journal.events import HistoryDropped, MessagesChanged, StepStarted
from recovery.testing import crash_everywhere
from recovery.testing.simulated.virtual_time import Clock
from tests.support.lives import RUN, Died, Segmented, die_in, disk_store, recorded, run
from tests.support.scale import scaled

pytestmark = pytest.mark.usefixtures("in_order")
SYSTEM = {"role": "system", "content": "You sort mail."}


@dataclass
class Outside:
    """A bank that knows charges by their idempotency keys, and a model."""

    charges: dict[str, Any] = field(default_factory=dict)

    def charge(self) -> Callable[[Any], str]:
        def look_up(call: Any) -> Resolution:
            known = call.idempotency_key in self.charges
            return Resolution.outcome(f"receipt {call.args[0]}") if known else Resolution.retry()

        @tool(reconcile=look_up)
        def charge(what: Any) -> str:
            call = current_call()
            assert call is not None
            self.charges[call.idempotency_key] = what
            return f"receipt {what}"

        return charge


@tool(after_crash="retry")
def ask(messages: Any) -> str:
    """A model: to ask it again is allowed, but it answers for the conversation it is given."""
    return f"answer {len(messages)}"


async def skips_what_is_done(run: Any, charge: Any) -> Any:
    done = set(run.state.get("done", []))
    async for step in run.steps():
        if step not in done:
            await run.call(charge, f"customer {step}")
            done.add(step)
            run.state["done"] = sorted(done)
        if step == 4:
            return sorted(done)


async def skips_customers(run: Any, charge: Any) -> Any:
    done = set(run.state.get("done", []))
    left = [name for name in ("ann", "bob", "cy", "di") if name not in done]
    async for _ in run.steps():
        if not left:
            return sorted(done)
        name = left.pop(0)
        await run.call(charge, name)
        done.add(name)
        run.state["done"] = sorted(done)


async def goes_on_from_a_total(run: Any, charge: Any) -> Any:
    total = run.state.get("total", 0)
    async for step in run.steps():
        total += step
        await run.call(charge, total)
        run.state["total"] = total
        if step == 5:
            return total


async def sets_a_default(run: Any, charge: Any) -> Any:
    done = run.state.setdefault("done", [])
    counts = run.state.setdefault("counts", {"ok": {"n": 0}})["ok"]
    async for step in run.steps():
        done.append(await run.call(charge, step))
        counts["n"] += 1
        if step == 4:
            return [done, counts]


async def sets_and_reads(run: Any, charge: Any) -> Any:
    run.state["x"] = 0
    run.state |= {"y": []}
    run.state.update(z=1)
    start = run.state["x"]
    async for step in run.steps():
        run.state["x"] += step
        run.state["y"].append(step)
        await run.call(charge, [start == run.state["x"], step])
        if step == 4:
            return run.state["x"]


async def assigns_the_state(run: Any, charge: Any) -> Any:
    run.state = {"n": 0, "log": []}
    async for step in run.steps():
        run.state["n"] += 1
        run.state["log"].append(await run.call(charge, run.state["n"]))
        if step == 4:
            return run.state["log"]


async def notes_that_it_started(run: Any, charge: Any) -> Any:
    log = run.state.setdefault("log", [])
    log.append("started")
    run.state.setdefault("seen", {"a": [1]})["a"].insert(0, 2)
    async for step in run.steps():
        log.append(step)
        run.state["seen"]["a"].append(await run.call(charge, len(log)))
        if step == 4:
            return run.state


async def takes_what_is_new(run: Any, charge: Any) -> Any:
    run.state["first"] = True
    async for step in run.steps():
        if run.state.pop("first", False):
            await run.call(charge, "welcome")
        await run.call(charge, step)
        if step == 4:
            return sorted(run.state)


async def asks_whether_there_are_messages(run: Any, charge: Any) -> Any:
    if not run.messages:
        run.messages.append(SYSTEM)
    async for step in run.steps():
        run.messages.append(await run.call(ask, run.messages))
        await run.call(charge, run.messages[-1])
        if step == 4:
            return len(run.messages)


async def appends_without_asking(run: Any, charge: Any) -> Any:
    run.messages.append(SYSTEM)
    run.messages += [{"role": "user", "content": run.task}]
    async for step in run.steps():
        run.messages.append(await run.call(ask, run.messages))
        await run.call(charge, run.messages[-1])
        if step == 4:
            return len(run.messages)


async def copies_the_messages(run: Any, charge: Any) -> Any:
    run.messages.append(SYSTEM)
    history = list(run.messages)
    async for step in run.steps():
        history.append(await run.call(ask, history))
        run.messages.append(history[-1])
        await run.call(charge, len(history))
        if step == 4:
            return history


async def plans_first(run: Any, charge: Any) -> Any:
    run.messages.append(SYSTEM)
    plan = await run.call(ask, run.messages)
    run.messages.append(plan)
    second = await run.call(ask, run.messages)
    run.messages.append(second)
    async for step in run.steps():
        run.messages.append(f"{plan}/{second}/{step}")
        await run.call(charge, run.messages[-1])
        if step == 4:
            return [plan, second]


async def sets_up_behind_a_flag(run: Any, charge: Any) -> Any:
    if not run.state.get("ready"):
        run.state["account"] = await run.call(charge, "open an account")
        run.messages.append(SYSTEM)
        run.state["ready"] = True
    async for step in run.steps():
        await run.call(charge, [run.state["account"], step])
        if step == 4:
            return run.state["account"]


async def sets_up_side_by_side(run: Any, charge: Any) -> Any:
    names = run.state.setdefault("names", ["ann", "bob"])
    found = await asyncio.gather(
        *(run.call(charge, f"{name}/{len(run.messages)}") for name in names)
    )
    run.messages.extend(found)
    clock = [run.now(), run.random(), run.uuid()]
    async for step in run.steps():
        run.messages.append([found, clock])
        await run.call(charge, [step, *clock])
        if step == 4:
            return [found, len(run.messages)]


async def returns_when_it_was_done(run: Any, charge: Any) -> Any:
    if run.state.get("done"):
        return "done"
    async for step in run.steps():
        if run.state.get("done"):
            return "done"
        await run.call(charge, step)
        run.state["done"] = step == 3


def charges_in_plain_code(run: Any, charge: Any) -> Any:
    done = run.state.setdefault("done", [])
    run.messages.append(SYSTEM)
    plan = run.call(ask, run.messages)
    total = run.state.get("total", 0)
    for step in run.steps():
        done.append(run.call(charge, [plan, step]))
        total += step
        run.state["total"] = total
        run.messages.append(run.call(ask, run.messages))
        if step == 4:
            return [done, total, plan]


IDIOMS = [
    skips_what_is_done,
    skips_customers,
    goes_on_from_a_total,
    sets_a_default,
    sets_and_reads,
    assigns_the_state,
    notes_that_it_started,
    takes_what_is_new,
    asks_whether_there_are_messages,
    appends_without_asking,
    copies_the_messages,
    plans_first,
    sets_up_behind_a_flag,
    sets_up_side_by_side,
    returns_when_it_was_done,
    charges_in_plain_code,
]


@pytest.mark.parametrize(("every", "retention"), [(3, "all"), (1, "latest_only")])
@pytest.mark.parametrize("idiom", IDIOMS, ids=lambda idiom: idiom.__name__)
def test_an_idiom_gives_what_it_gives_without_a_crash(
    idiom: Any, every: int, retention: Any
) -> None:
    def make_agent(outside: Outside) -> RecoverableAgent:
        agent = partial(idiom, charge=outside.charge())
        return RecoverableAgent(agent, CheckpointStore(retention=retention), every)

    report = crash_everywhere(
        make_agent,
        "sort it",
        setup=Outside,
        effects=lambda outside: [*outside.charges.values()],
        points=scaled(4, 1000),
    )
    assert report.ok, str(report)


# -- what an edit, or another state, changes before the loop


@dataclass
class Lives:
    """The processes of one run. Each dies in the step that its version of the agent names."""

    store: CheckpointStore = field(default_factory=disk_store)
    made: list[Any] = field(default_factory=list)  # calls that were executed

    def live(self, agent: Callable[..., Any], dies_in: int | None = None) -> Any:
        """A life with this agent function (of the run and of a tool); what it returned."""

        @tool
        async def do(what: Any) -> str:
            self.made.append(what)
            return f"did {what}"

        async def version(run_: Any) -> Any:
            vars(do)["dies_in"] = dies_in
            return await agent(run_, do)

        if dies_in is None:
            return run(version, self.store, checkpoint_every_n=1)
        self.store = die_in(version, self.store, checkpoint_every_n=1)
        return None


async def loop(run: Any, do: Any, steps: int = 4) -> Any:
    async for step in run.steps():
        await run.call(do, step)
        if step == do.dies_in:
            raise Died
        if step == steps:
            return [list(run.messages), dict(run.state)]


def test_a_reworded_prompt_behind_a_checkpoint_stops_nobody() -> None:
    async def agent(run: Any, do: Any, prompt: str) -> Any:
        run.messages.append(prompt)
        run.state["prompt"] = prompt
        return await loop(run, do)

    lives = Lives()
    lives.live(partial(agent, prompt="You are kind."), dies_in=3)
    found = lives.live(partial(agent, prompt="You are very kind."))
    assert found["result"] == [["You are kind."], {"prompt": "You are kind."}]
    assert lives.made == [1, 2, 3, 4]
    assert not recorded(lives.store, HistoryDropped)
    assert len(recorded(lives.store, MessagesChanged)) == 1


def test_calls_before_the_loop_are_served_missed_by_nobody_or_new(
    in_order: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    async def first(run: Any, do: Any) -> Any:
        await run.call(do, "set up")
        run.messages.append(await run.call(do, "plan for 0 messages"))
        await run.call(do, "greet", call_id="greeting")
        return await loop(run, do)

    async def second(run: Any, do: Any) -> Any:
        found = [
            await run.call(do, "set it up"),  # the first of its tool, whatever it is given
            await run.call(do, "greet warmly", call_id="greeting"),
            await run.call(do, "something new", call_id="new"),
        ]  # "plan" is not asked for any more
        return [found, await loop(run, do)]

    lives = Lives()
    lives.live(first, dies_in=3)
    caplog.set_level("INFO")
    lives.live(second, dies_in=4)
    told = [one.getMessage() for one in caplog.records if "It was served" in one.getMessage()]
    assert [("set it up" in one, "greet warmly" in one) for one in told] == [
        (True, False),
        (False, True),
    ]
    found = lives.live(second)
    assert found["result"][0] == ["did set up", "did greet", "did something new"]
    assert lives.made == ["set up", "plan for 0 messages", "greet", 1, 2, 3, "something new", 4]
    assert found["report"].recovery_count == 2
    assert in_order
    in_order.clear()


@pytest.mark.parametrize(
    ("before", "calls"),
    [
        (lambda n: [f"had {n}", "set up"] if n else ["set up"], "2 calls of do, and 1 are"),
        (lambda n: [f"{at} of {4 - n}" for at in range(4 - n)], "2 calls of do, and 4 are"),
        (lambda n: [f"had {n}", "set up"], ""),
    ],
    ids=["more", "fewer", "as many"],
)
def test_no_call_is_made_twice_for_one_that_was_served_in_its_place(
    before: Callable[[int], list[str]], calls: str, caplog: pytest.LogCaptureFixture
) -> None:
    """With the same code. That the order says little is said where the numbers differ."""

    async def agent(run: Any, do: Any) -> Any:
        done = run.state.setdefault("done", [])
        for what in before(len(done)):
            await run.call(do, what)
        async for step in run.steps():
            if step == do.dies_in:
                raise Died
            await run.call(do, step)
            done.append(step)
            if step == 4:
                return done

    lives = Lives()
    lives.live(agent, dies_in=3)
    first = lives.made[:-2]
    lives.live(agent)
    assert lives.made == [*first, 1, 2, 3, 4]
    said = [one for one in caplog.messages if "the code before the loop of steps made" in one]
    assert len(said) == bool(calls) and all(calls in one for one in said)


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("is_new", [True, False])
def test_a_new_call_leaves_the_order_of_what_is_recorded_as_it_was(is_new: bool) -> None:
    """Two tasks note that they are done, in the order in which the first life was."""

    async def agent(run: Any, do: Any) -> Any:
        seen: list[str] = []

        async def fetch(what: str) -> None:
            await asyncio.sleep(0.01 if what == "quick" else 0)  # also when the call is served
            await run.call(do, what)
            seen.append(what)

        if is_new and run.recovery_count:
            await run.call(do, "new", call_id="new")
        async for step in run.steps():
            if step == 2:
                await asyncio.gather(fetch("slow"), fetch("quick"))
                await run.call(do, f"had {seen}")
                if not run.recovery_count:
                    raise Died
                return seen

    made: list[str] = []

    @tool(after_crash="retry")
    async def do(what: str) -> None:
        made.append(what)
        await asyncio.sleep(0.1 if what == "slow" else 0)

    store = die_in(partial(agent, do=do), disk_store(), checkpoint_every_n=1)
    assert run(partial(agent, do=do), store, checkpoint_every_n=1)["result"] == ["quick", "slow"]
    assert made == ["slow", "quick", "had ['quick', 'slow']", *["new"] * is_new]


def test_what_a_resumed_run_did_before_its_loop_is_history_of_that_state_alone() -> None:
    """It prefetches what is left: another thing each time, of which none is the other."""

    async def agent(run: Any, do: Any) -> Any:
        for item in run.state.get("left", []):
            await run.call(do, f"fetch {item}")
        async for step in run.steps():
            run.state["left"] = list(range(step, 6))[:2]
            if step == do.dies_in:
                raise Died
            if step == 5:
                return step

    lives = Lives()
    lives.live(agent, dies_in=3)  # checkpoint with [2, 3]
    lives.live(agent, dies_in=3)
    assert lives.made == ["fetch 2", "fetch 3"]  # once, by two lives
    lives.live(agent, dies_in=5)
    assert lives.live(agent)["result"] == 5
    assert lives.made == ["fetch 2", "fetch 3", "fetch 4", "fetch 5"]


def test_a_new_call_before_the_loop_that_a_crash_cut_short_is_in_doubt() -> None:
    async def agent(run: Any, do: Any, new: bool) -> Any:
        if new:
            await run.call(do, "new")
        return await loop(run, do)

    lives = Lives()
    lives.live(partial(agent, new=False), dies_in=3)

    async def dies(run: Any, do: Any) -> Any:
        @tool(name="do")
        async def dying(what: Any) -> str:
            raise Died

        await run.call(dying, "new")

    lives.live(dies, dies_in=1)
    with pytest.raises(InDoubtError):
        lives.live(partial(agent, new=True))
    with pytest.raises(DivergenceError):  # and is not forgotten by code that does without
        lives.live(partial(agent, new=False))


def test_keys_of_the_state_are_new_or_were_removed() -> None:
    async def first(run: Any, do: Any) -> Any:
        run.state["once"] = True
        async for step in run.steps():
            if run.state.pop("once", False):
                await run.call(do, "welcome")
            if step == do.dies_in:
                raise Died
            if step == 6:
                return dict(run.state)

    async def second(run: Any, do: Any) -> Any:
        run.state.setdefault("log", []).append("edited")
        return await first(run, do)

    lives = Lives()
    lives.live(first, dies_in=3)
    lives.live(second, dies_in=5)
    assert lives.live(second)["result"] == {"log": ["edited"]}
    assert lives.made == ["welcome"]


def test_what_was_changed_in_place_is_put_back_in_place() -> None:
    """At any depth, whatever was moved: who holds a value holds it in the loop, too."""

    async def agent(run: Any, do: Any) -> Any:
        rows = [{"id": 1, "n": 0}, {"id": 2, "n": 0}]
        tree = run.state.setdefault("tree", {"rows": rows, "tags": {"a"}})
        first = next(row for row in tree["rows"] if row["id"] == 1)
        tree["rows"].insert(0, {"id": 3})
        tree["rows"].reverse()
        first["n"] = tree["spare"] = 9
        tree["tags"].add(f"seen {len(tree['rows'])}")
        tree["cells"] = bytearray(b"x")
        async for step in run.steps():
            first["n"] += 1
            tree["cells"].append(step)
            tree["tags"].add(step)
            if step == do.dies_in:
                raise Died
            if step == 5:
                return run.state["tree"]

    whole = Lives().live(agent)["result"]
    lives = Lives()
    for step in (2, 3, 5):
        lives.live(agent, dies_in=step)
    assert lives.live(agent)["result"] == whole
    assert whole["rows"] == [{"id": 2, "n": 0}, {"id": 1, "n": 14}, {"id": 3}]


@pytest.mark.parametrize("what", ["state", "messages"])
def test_a_task_that_runs_beside_the_loop_is_told_not_to_change_them(
    what: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A resumed run starts it again, and nobody knows which of its changes are in the checkpoint:
    so the first execution says it, and not the first resumption. Of the state it is a warning, for
    to assign the same value again does no harm."""

    async def beside(run: Any) -> None:
        for n in range(3):
            await run.sleep(0.01)
            if what == "state":
                run.state["n"] = n
            else:
                run.messages.append("tick")

    async def agent(run: Any) -> Any:
        async with asyncio.TaskGroup() as group:
            group.create_task(beside(run))
            async for step in run.steps():
                await run.sleep(0.05)
                if step == 3:
                    return [dict(run.state), list(run.messages)]

    def said() -> list[str]:
        texts = [record.getMessage() for record in caplog.records]
        return [text for text in texts if "started before the loop of steps (" in text]

    if what == "messages":
        with pytest.raises(ExceptionGroup) as caught:
            run(agent, disk_store(), max_recoveries=0)
        (why,) = map(str, caught.value.exceptions)
    else:
        assert run(agent, disk_store())["result"][0] == {"n": 2}
        (why,) = said()
    assert "started before the loop of steps (" in why
    assert "test_before_the_loop.py:" in why
    caplog.clear()
    found = run(agent, disk_store(), checkpoint_every_n=None)["result"]
    assert found == ([{"n": 2}, []] if what == "state" else [{}, ["tick"] * 3])
    assert not said()


def test_what_a_step_has_removed_is_not_set_by_a_later_life_either() -> None:
    """The code before the loop sets it in the first life, not in the second, and in the third."""

    async def agent(run: Any, do: Any) -> Any:
        if "done" not in run.state:
            run.state["first"] = True
        async for step in run.steps():
            if step == 1:
                del run.state["first"]
                run.state["done"] = True
            elif step == 3:
                del run.state["done"]
            if step == do.dies_in:
                raise Died
            if step == 5:
                return dict(run.state)

    lives = Lives()
    for step in (2, 4):
        lives.live(agent, dies_in=step)
    assert lives.live(agent)["result"] == {}


def test_a_wait_before_the_loop_does_not_wait_for_the_steps(clock: Clock) -> None:
    waited: list[float] = []

    async def agent(run: Any) -> Any:
        if run.recovery_count:
            beside, began = asyncio.create_task(asyncio.sleep(50)), clock.ahead
            await run.sleep(10)
            waited.append(clock.ahead - began)
            await beside
        async for step in run.steps():
            await run.sleep(1)
            if step == 2 and not run.recovery_count:
                raise ConnectionError
            if step == 3:
                return step

    assert run(agent, disk_store(), checkpoint_every_n=1)["result"] == 3
    assert len(waited) == 1 and waited[0] <= 10.1


@pytest.mark.parametrize("before", ["now", "call"])
def test_nothing_waits_for_what_a_resumed_run_leaves_out_before_its_loop(
    clock: Clock, before: str
) -> None:
    began: list[float] = []

    async def agent(run: Any) -> Any:
        began.append(clock.ahead)
        if len(began) == 1:
            await run.call(ask, []) if before == "call" else run.now()
        async for step in run.steps():
            beside = asyncio.create_task(asyncio.sleep(1000))
            await run.call(ask, [step])
            beside.cancel()
            await asyncio.wait([beside])
            if step == 2 and len(began) == 1:
                raise Died
            if step == 2:
                return clock.ahead - began[1]

    dead = die_in(agent, disk_store(), checkpoint_every_n=1)
    assert run(agent, dead, checkpoint_every_n=1)["result"] < 1


def test_the_code_around_a_loop_in_a_task_of_its_own_changes_what_it_likes() -> None:
    async def work(run: Any) -> None:
        async for step in run.steps():
            run.state["step"] = step
            if step == 2:
                return

    async def agent(run: Any) -> Any:
        await asyncio.create_task(work(run))
        run.messages.append("done")
        run.state["step"] += 1
        return [run.state["step"], *run.messages]

    assert run(agent, disk_store(), checkpoint_every_n=1)["result"] == [3, "done"]


@pytest.mark.usefixtures("at_once")
def test_retention_removes_what_the_code_before_the_loop_said(tmp_path: Path) -> None:
    """What a checkpoint has is not kept a second time for the code before the loop."""
    lives = Lives()

    @tool
    async def do(what: Any) -> str:
        lives.made.append(what)
        return f"did {what!s:.10}"

    async def agent(run: Any) -> Any:
        run.messages.append(SYSTEM)
        plan = await run.call(do, list(run.messages))
        done = run.state.setdefault("done", [])
        async for step in run.steps():
            done.append(await run.call(do, f"{step} " + "x" * 2000))
            if len(lives.made) in (30, 61, 62):
                lives.made.append("died")
                raise Died
            if step == 90:
                return [plan, len(done), list(run.messages)]

    def live() -> Any:
        backend = Segmented(tmp_path)
        with CheckpointStore(backend, retention="latest_only") as store:
            return run(agent, store, checkpoint_every_n=1)

    for _ in range(3):
        with pytest.raises(Died):
            live()
    found = live()
    assert found["result"] == ["did [{'role': ", 90, [SYSTEM]]
    assert len(lives.made) == 91 + 3
    reader = Segmented(tmp_path).read(RUN)
    assert reader is not None
    with reader:
        assert reader.oldest_lsn > 1


def test_no_checkpoint_is_taken_before_recorded_steps() -> None:
    lives: list[Any] = []

    async def agent(run: Any) -> None:
        lives.append(run)
        async for step in run.steps():
            if step == 4 + len(lives):
                raise Died

    store = die_in(agent, disk_store(), checkpoint_every_n=99)
    for _ in range(2):
        store = die_in(agent, store, checkpoint_every_n=2)
    assert [event.step for event in recorded(store, StepStarted)] == [1, 2, 3, 4, 5, 6, 7]
