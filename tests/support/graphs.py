"""Graphs that are killed, and the world in which their tools do something."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

from eventlog.errors import WriterFailedError
from eventlog.testing import Crash, SimulatedDisk
from recovery import CheckpointConfig, CheckpointManager, Resolution, current_call, tool
from recovery.graph import (
    ExecutionResult,
    FlexibleGraphExecutor,
    Graph,
    GraphExecutor,
    Judgment,
    NodeContext,
    PlanStep,
    StepOutcome,
    feedback_of,
)
from recovery.journal.encoding import decode
from recovery.journal.events import CallIntended, CallReturned
from tests.support.lives import Disk

RUN = "run"


class World:
    """What has been done: effects by idempotency key; nodes entered and tools called, by process
    and in all."""

    def __init__(self) -> None:
        self.effects: dict[str, Any] = {}
        self.made: Counter[Any] = Counter()
        self.entered: list[tuple[str, int]] = []

        def look(call: Any) -> Resolution:
            if call.idempotency_key in self.effects:
                return Resolution.outcome(f"sent {self.effects[call.idempotency_key]}")
            return Resolution.retry()

        @tool(reconcile=look)
        def send(what: Any) -> str:
            call = current_call()
            assert call is not None
            assert call.idempotency_key not in self.effects, f"{what} is sent twice"
            self.effects[call.idempotency_key] = what
            self.made[what] += 1
            return f"sent {what}"

        @tool(after_crash="retry")
        async def look_up(what: Any) -> Any:
            return [what, len(str(what))]

        self.send, self.look_up = send, look_up

    def enter(self, context: NodeContext) -> None:
        self.entered.append((context.node_id, context.visit))


Subject = Callable[..., Any]  # makes what is executed, anew for each process


def chain(world: World, length: int = 20) -> Graph:
    """Each node looks something up, sends something, and writes what came of it."""
    graph = Graph("chain")

    async def work(context: NodeContext) -> dict[str, Any]:
        world.enter(context)
        found = await context.call(world.look_up, context.node_id)
        sent = await context.call(world.send, context.node_id)
        return {context.node_id: [found, sent, len(context.memory)]}

    for i in range(length):
        graph.node(f"n{i}", work)
        if i:
            graph.edge(f"n{i - 1}", f"n{i}")
    return graph


def fan_out(world: World, width: int = 8) -> Graph:
    """One node, then many at once (plain and async ones), then a join."""
    graph = Graph("fan out")

    async def first(context: NodeContext) -> dict[str, Any]:
        world.enter(context)
        return {"seed": await context.call(world.send, "first")}

    async def branch(context: NodeContext) -> dict[str, Any]:
        world.enter(context)
        for _ in range(int(context.node_id[1:]) % 3):  # they end in another order
            await asyncio.sleep(0)
        return {context.node_id: await context.call(world.send, context.node_id), "last": 1}

    def plain(context: NodeContext) -> str:
        world.enter(context)
        return str(world.send(context.node_id))

    def join(context: NodeContext) -> dict[str, Any]:
        world.enter(context)
        return {
            "via": context.via,
            "joined": sorted(key for key in context.memory if key[0] == "b"),
        }

    graph.node("first", first)
    for i in range(width):
        graph.node(f"b{i}", plain if i % 4 == 3 else branch)
        graph.edge("first", f"b{i}")
        graph.edge(f"b{i}", "join")
    graph.node("join", join, join=True)
    return graph


def loop(world: World, visits: int = 5) -> Graph:
    """A node that is visited again and again, then one more."""
    graph = Graph("loop")

    async def again(context: NodeContext) -> dict[str, Any]:
        world.enter(context)
        sent = await context.call(world.send, f"again {context.visit}")
        return {"sent": [*context.memory.read("sent", []), sent], "count": context.visit}

    @graph.node("begin")
    async def begin(context: NodeContext) -> None:
        world.enter(context)

    @graph.node("end")
    async def end(context: NodeContext) -> Any:
        world.enter(context)
        return await context.call(world.send, "end")

    graph.node("again", again)
    graph.edge("begin", "again")
    graph.edge("again", "again", lambda output, memory: output["count"] < visits)
    graph.edge("again", "end", lambda output, memory: memory["count"] == visits)
    return graph


def heavy(world: World, visits: int = 40) -> Graph:
    """A loop whose tools return much, of which little is written."""
    graph = Graph("heavy")

    async def work(context: NodeContext) -> dict[str, Any]:
        world.enter(context)
        found = await context.call(world.look_up, f"{context.visit:>600}")
        await context.call(world.send, context.visit)
        return {"sum": context.memory.read("sum", 0) + len(found[0]), "n": context.visit}

    graph.node("work", work)
    graph.edge("work", "work", lambda output, memory: output["n"] < visits)
    return graph


def flexible(world: World, manager: CheckpointManager) -> FlexibleGraphExecutor:
    """A plan of which one step is tried again, and one makes a new plan."""

    def planner(context: NodeContext) -> list[Any]:
        world.enter(context)
        steps = [
            PlanStep("a", "send", {"what": "a"}),
            PlanStep("b", "look_up", {"what": "$a"}, ("a",)),
            PlanStep("c", "send", {"what": "$b"}, ("b",)),
        ]
        if "not c" in feedback_of(context):
            steps[2] = PlanStep("d", "send", {"what": "instead of c"}, ("a", "b"))
        return steps

    def judge(step: PlanStep, outcome: StepOutcome, context: NodeContext) -> Any:
        world.enter(context)
        if step.id == "b" and outcome.attempt == 1:
            return "retry", "once more"
        return Judgment("replan", "not c") if step.id == "c" else "accept"

    functions = {"send": world.send, "look_up": world.look_up}
    return FlexibleGraphExecutor(planner, functions, judge, checkpoint_manager=manager)


def manager_on(disk: SimulatedDisk, every: int = 1) -> CheckpointManager:
    return CheckpointManager(Disk(disk), CheckpointConfig(every_n_nodes=every))


async def begin(subject: Subject, world: World, manager: CheckpointManager) -> ExecutionResult:
    if subject is flexible:
        return await flexible(world, manager).execute("the goal", {"given": 1}, RUN)
    executor = GraphExecutor(checkpoint_manager=manager)
    return await executor.execute(subject(world), "the goal", {"given": 1}, RUN)


async def resume(subject: Subject, world: World, manager: CheckpointManager) -> ExecutionResult:
    """From the run id alone, if the crash has left a run; else from the beginning."""
    if [one.run_id for one in manager.unfinished()] != [RUN]:
        return await begin(subject, world, manager)
    if subject is flexible:
        return await flexible(world, manager).resume(RUN)
    executor = GraphExecutor(checkpoint_manager=manager)
    return await executor.resume(subject(world), RUN)


def finished_visits(manager: CheckpointManager) -> set[tuple[str, int]]:
    """The visits of which the log has the outcome."""
    reader = manager.store.backend.read(RUN)
    if reader is None:
        return set()
    made: dict[int, tuple[str, int]] = {}
    done = set()
    with reader:
        for record in reader.records():
            event = decode(record)
            if isinstance(event, CallIntended) and event.tool.startswith("node "):
                assert event.arguments is not None
                made[record.lsn] = (event.tool.removeprefix("node "), event.arguments[0][0])
            elif isinstance(event, CallReturned) and event.call in made:
                done.add(made[event.call])
    return done


def died(exc: BaseException) -> bool:
    """Whether this is the crash: a task group raises it in a group, and what another task of the
    dead process tries then fails."""
    return isinstance(exc, Crash | WriterFailedError) or (
        isinstance(exc, BaseExceptionGroup) and exc.subgroup(Crash) is not None
    )


def killed(
    subject: Subject,
    every: int,
    crash: tuple[int, int] | None,
    manager_of: Callable[[SimulatedDisk, int], CheckpointManager] = manager_on,
) -> tuple[Any, World, int]:
    """An execution that dies at this call of the disk, and is resumed; what came of it, and how
    many calls of the disk the last process made."""
    world, disk = World(), SimulatedDisk(seed=1)
    if crash is not None:
        disk.crash_at(*crash)
    act = begin
    while True:
        manager = manager_of(disk, every)
        done = finished_visits(manager) if act is resume else set()
        world.entered.clear()
        try:
            result = asyncio.run(act(subject, world, manager))
        except BaseException as exc:
            if not died(exc):
                raise
            assert act is begin
            disk, act = disk.after_process_death(), resume
            continue
        assert done.isdisjoint(world.entered), "a finished node was executed again"
        assert set(world.made.values()) <= {1}, "a tool was called twice"
        return result, world, len(disk.calls)
