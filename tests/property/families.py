"""Trees of runs as data, and the lives of a process that runs them on a simulated disk.

A node is an agent program that may have children, each a node of its own. What tools do outside is
counted in a list that outlives every crash; the oracle is the same tree run without one. All logs
of the store crash together, at a call of the disk or around an effect.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from eventlog import EventLog
from eventlog.testing import Crash, SimulatedDisk
from recovery import (
    CheckpointStore,
    ChildFailedError,
    ChildParkedError,
    InDoubtError,
    PermanentError,
    RecoverableAgent,
    Resolution,
    RunFailedError,
    children,
    current_call,
    parent,
    resolve,
    tool,
)
from recovery._events import (
    CallFailed,
    CallIntended,
    CallResolved,
    CallRetried,
    CallReturned,
    ChildStarted,
    RunStarted,
    decode,
)
from recovery.stores.protocol import LogStore
from tests.property.agents import Clock, End, Everything, Loop, bury

ROOT = "run"
LIVES_MAX = 60
PARKS_MAX = 60


@dataclass(frozen=True)
class Node:
    """An agent program: the code before the first step, then the steps. ``label`` is its task."""

    label: str
    blocks: tuple[tuple[Any, ...], ...]
    plain: bool = False
    every: int = 1

    def nodes(self) -> Iterator[Node]:
        yield self
        for block in self.blocks:
            yield from _nodes_in(block)


def _nodes_in(ops: tuple[Any, ...]) -> Iterator[Node]:
    for op in ops:
        if op[0] == "child" or op[0] == "limited":
            yield from op[1].nodes()
        elif op[0] == "together":
            yield from _nodes_in(op[1])


class Store(LogStore):
    def __init__(self, disk: SimulatedDisk, segment_size: int) -> None:
        super().__init__("runs", disk, "power")
        self.segment_size = segment_size

    def claim(self, run_id: str, takeover: bool = False) -> EventLog:
        return EventLog.open(self._path(run_id), files=self._files, takeover=takeover,
                             segment_size=self.segment_size)  # fmt: skip


@dataclass
class Family:
    """All that outlives a process, and the process of the moment."""

    clock: Clock
    root: Node
    segment_size: int = 1 << 20
    max_children: int = 64
    disk: SimulatedDisk = field(default_factory=lambda: SimulatedDisk(seed=1))
    effects: list[tuple[str, str]] = field(default_factory=list)  # (label, idempotency key)
    results: dict[str, Any] = field(default_factory=dict)
    again: set[str] = field(default_factory=set)  # labels of calls that may be made again
    raised: set[Any] = field(default_factory=set)
    kill: tuple[int, bool] | None = None
    life: int = 0

    def __post_init__(self) -> None:
        self.nodes = {node.label: node for node in self.root.nodes()}
        self.tools = make_tools(self)

    @property
    def dead(self) -> bool:
        return self.disk._dead

    def die(self) -> None:
        self.disk._dead = True
        raise Crash

    def effect(self, label: str) -> Any:
        """What a tool does to the outside world, at the moment when it does it."""
        if self.dead:
            raise Crash
        call = current_call()
        assert call is not None
        number = len(self.effects)
        if self.kill == (number, False):
            self.die()
        self.effects.append((label, call.idempotency_key))
        self.results[call.idempotency_key] = result = f"{label} done"
        if self.kill == (number, True):
            self.die()
        return result

    def store(self) -> Store:
        return Store(self.disk, self.segment_size)


def make_tools(world: Family) -> dict[str, Callable[..., Any]]:
    def happened(call: Any) -> Resolution:
        if call.idempotency_key in world.results:
            return Resolution.outcome(world.results[call.idempotency_key])
        return Resolution.retry()

    async def body(label: str) -> Any:
        await asyncio.sleep(0)
        return world.effect(label)

    @tool(after_crash="retry")
    async def retry(label: str) -> Any:
        world.again.add(label)
        return await body(label)

    @tool
    def plain(label: str) -> Any:
        return world.effect(label)

    @tool
    async def fails(label: str) -> Any:
        raise ValueError(f"cannot {label}")

    return {
        "park": tool(name="park")(body), "retry": retry, "plain": plain, "fails": fails,
        "reconcile": tool(name="reconcile", reconcile=happened)(body),
    }  # fmt: skip


class Interpreter:
    """Runs a node as an agent; in plain ones nothing ever waits."""

    def __init__(self, world: Family, run: Any) -> None:
        self.world, self.run, self.node = world, run, world.nodes[run.task]

    async def agent(self) -> Any:
        run, (prologue, *steps) = self.run, self.node.blocks
        before = await self.ops(prologue)
        if self.node.plain:
            for step in run.steps() if steps else ():
                run.state.setdefault("out", []).append(await self.ops(steps[step - 1]))
                if step == len(steps):
                    break
        elif steps:
            async for step in run.steps():
                run.state.setdefault("out", []).append(await self.ops(steps[step - 1]))
                if step == len(steps):
                    break
        return [self.node.label, before, run.state.get("out"), list(run.messages)]

    async def ops(self, ops: tuple[Any, ...]) -> list[Any]:
        return [await getattr(self, op[0])(*op[1:]) for op in ops]

    async def call(self, name: str, label: str, caught: bool = True) -> Any:
        try:
            made = self.run.call(self.world.tools[name], label)
            return made if self.node.plain else await made
        except ValueError as exc:
            if not caught:
                raise
            return str(exc)

    async def child(self, node: Node, caught: bool) -> Any:
        try:
            made = self.run.child(make_agent(self.world, node), node.label, name=node.label,
                                  checkpoint_every_n=node.every)  # fmt: skip
            return made if self.node.plain else await made
        except ChildFailedError as exc:
            if not caught:
                raise
            return ["failed", exc.type_name, nameless(exc.message)]

    async def together(self, ops: tuple[Any, ...]) -> Any:
        return await asyncio.gather(*(getattr(self, op[0])(*op[1:]) for op in ops))

    async def limited(self, node: Node) -> Any:
        """A child that takes longer than the agent waits."""
        try:
            async with asyncio.timeout(5):
                return await self.child(node, False)
        except TimeoutError:
            return "too late"

    async def sleep(self) -> None:
        await self.run.sleep(3600)

    async def message(self, text: str) -> None:
        self.run.messages.append(text)

    async def once(self, number: int) -> None:
        """An error of the agent's own, the first time."""
        if (self.node.label, number) not in self.world.raised:
            self.world.raised.add((self.node.label, number))
            raise RuntimeError("the agent fails once")

    async def give_up(self) -> None:
        raise PermanentError(f"{self.node.label} gives up")


def nameless(text: str) -> str:
    return re.sub(r"'run\+[^']*'", "RUN", text)


def make_agent(world: Family, node: Node) -> Callable[..., Any]:
    async def agent(run: Any) -> Any:
        return await Interpreter(world, run).agent()

    def plain(run: Any) -> Any:
        try:
            Interpreter(world, run).agent().send(None)
        except StopIteration as done:
            return done.value
        raise AssertionError("a plain agent waits")

    return plain if node.plain else agent


# -- lives


def live(world: Family) -> End:
    """One life of the process, to its end or death."""
    world.life += 1
    world.clock.now = world.clock.requests = 0
    loop = Loop(world.clock)
    root = world.root
    runner = RecoverableAgent(make_agent(world, root), CheckpointStore(world.store()), root.every,
                              max_children=world.max_children)  # fmt: skip
    try:
        if root.plain:
            return End("finished", runner.run_with_recovery_sync(root.label, ROOT))
        return End("finished", loop.run_until_complete(runner.run_with_recovery(root.label, ROOT)))
    except BaseException as exc:
        if world.dead:  # whatever the agents made of it: a dead process does nothing
            return End("crashed")
        if isinstance(exc, RunFailedError):
            return End("failed", exc)
        if isinstance(exc, ChildParkedError | InDoubtError):
            return End("parked", exc)
        raise
    finally:
        bury(loop)


def operate(world: Family, parked: Exception) -> None:
    """What an operator does: look outside whether it happened, and say so in the right run."""
    match parked:
        case InDoubtError():
            for call in parked.calls:
                found = world.results.get(call.idempotency_key)
                how = Resolution.retry() if found is None else Resolution.outcome(found)
                resolve(world.store(), call.run_id, call.lsn, how)
        case ChildParkedError():
            for _, error in parked.children:
                operate(world, error)
        case _:
            raise parked


@dataclass(frozen=True)
class Plan:
    """When lives end: ("disk", call, torn size) or ("effect", nth, behind it); power losses."""

    at: tuple[tuple[str, int, int], ...]
    power: tuple[int | None, ...] = ()


def lives(world: Family, plan: Plan) -> End:
    """Live, die, be resolved and live again until the tree has ended."""
    parks = 0
    while world.life < LIVES_MAX:
        index = min(world.life, len(plan.at))
        kind, number, how = (*plan.at, ("", 0, 0))[index]
        world.kill = (len(world.effects) + number, bool(how)) if kind == "effect" else None
        if kind == "disk":
            world.disk.crash_at(number, how)
        end = live(world)
        while end.how == "parked":
            parks += 1
            assert parks < PARKS_MAX, "resolving does not help"
            try:
                operate(world, end.value)
            except Crash:
                break
            end = live(world)
        if not world.dead:
            return end
        power = plan.power[index] if index < len(plan.power) else None
        dead = world.disk
        world.disk = dead.after_process_death() if power is None else dead.after_power_loss(power)
    raise AssertionError(f"not finished after {LIVES_MAX} lives")


def outcome_of(end: End) -> Any:
    if end.how == "failed":
        return "failed", end.value.type_name, nameless(end.value.message)
    assert end.how == "finished", end.value
    return "finished", end.value["result"]


# -- what must be true at the end


def check_effects(world: Family, oracle: Family) -> None:
    found = Counter(label for label, _ in world.effects)
    expected = Counter(label for label, _ in oracle.effects)
    assert found.keys() == expected.keys(), found.keys() ^ expected.keys()
    twice = [label for label, count in found.items() if count > 1 and label not in world.again]
    assert not twice, f"twice over all logs: {twice}"


def check_logs(world: Family, oracle: Family) -> None:
    """One log for each run of the tree, begun once, linked both ways; sound in itself."""
    store = world.store()
    ids = store.run_ids()
    assert len(ids) == len(oracle.store().run_ids()), ids
    linked = {ROOT}
    for run_id in ids:
        with EventLog.read(f"runs/{run_id}", files=world.disk) as reader:
            found = [(record.lsn, decode(record)) for record in reader.records(1)]
        (started,) = [event for _, event in found if isinstance(event, RunStarted)]
        check_log(found)
        for child in children(store, run_id):
            link = parent(store, child.run_id)
            assert link is not None
            assert (link.run_id, link.uid, link.lsn) == (run_id, started.uid, child.call)
            linked.add(child.run_id)
    assert linked == set(ids), "a run that nobody has started"


def check_log(found: list[tuple[int, Any]]) -> None:
    calls = {lsn: e for lsn, e in found if isinstance(e, CallIntended)}
    identities = [(c.scope, c.tool, c.digest, c.occurrence) for c in calls.values()]
    assert len(identities) == len(set(identities)), "a call is intended twice"
    ends: Counter[int] = Counter()
    begun: Counter[int] = Counter()
    tries: Counter[int] = Counter()
    for _, event in found:
        match event:
            case CallReturned(call=call) | CallFailed(call=call):
                ends[call] += 1
            case CallResolved(call=call, how="retry"):
                ends[call] = 0
            case CallResolved(call=call):
                ends[call] += 1
            case ChildStarted(call=call, run_id=run_id):
                begun[call] += 1
                assert calls[call].child == run_id
            case CallRetried(call=call, attempt=attempt):
                tries[call] += 1
                assert attempt == tries[call] + 1
    assert max(ends.values(), default=0) <= 1, "a call has two outcomes"
    assert max(begun.values(), default=0) <= 1, "a child was started twice"


@dataclass
class Trial:
    """A tree with its run that never crashed."""

    oracle: Family
    result: Any
    disk_calls: int
    points: int = 0

    def world(self) -> Family:
        one = self.oracle
        return Family(one.clock, one.root, one.segment_size, one.max_children)

    def crash(self, plan: Plan) -> Family:
        world = self.world()
        self.points += len(plan.at)
        end = lives(world, plan)
        assert outcome_of(end) == self.result
        check_effects(world, self.oracle)
        check_logs(world, self.oracle)
        count = len(world.effects)
        world.disk._crash_at = world.kill = None
        assert outcome_of(live(world)) == self.result
        assert len(world.effects) == count, "a tree that has ended did something"
        return world


def trial(clock: Clock, root: Node, segment_size: int = 1 << 20, max_children: int = 64) -> Trial:
    oracle = Family(clock, root, segment_size, max_children)
    oracle.raised = Everything()  # the agents' own errors: it never recovers
    result = outcome_of(live(oracle))
    assert "builtins.A" not in str(result), result  # nothing but what the nodes do
    again = Family(clock, root, segment_size, max_children)
    live(again)
    return Trial(oracle, result, len(again.disk.calls))


# -- random trees


class Labels:
    def __init__(self) -> None:
        self.count = 0

    def next(self) -> str:
        self.count += 1
        return f"{self.count}"


@st.composite
def trees(draw: Any) -> Node:
    labels = Labels()
    return draw(nodes(labels, 2, draw(st.sampled_from([False, False, True]))))  # type: ignore[no-any-return]


@st.composite
def nodes(draw: Any, labels: Labels, depth: int, plain: bool) -> Node:
    """Where several go on side by side, failures are caught: else it depends on time how far the
    others get."""
    label = f"node {labels.next()}"
    blocks = []
    for i in range(draw(st.integers(1, 3))):
        kinds = ["call", "call", "message", "once"] + ["child"] * (3 * (depth > 0))
        kinds += [] if plain else ["together", "together"]
        kinds += ["limited"] * (depth > 0 and not plain)
        blocks.append(tuple(draw(ops(labels, depth, plain, draw(st.sampled_from(kinds))))
                            for _ in range(draw(st.integers(0 if i else 1, 2)))))  # fmt: skip
    if draw(st.sampled_from([False] * 4 + [True])):  # it fails
        how = draw(st.sampled_from([("give_up",), ("call", "fails", labels.next(), False)]))
        blocks[-1] = (*blocks[-1], how)
    return Node(label, tuple(blocks), plain, draw(st.sampled_from([1, 1, 2])))


@st.composite
def ops(draw: Any, labels: Labels, depth: int, plain: bool, kind: str, caught: bool = False) -> Any:
    match kind:
        case "call":
            names = ["plain", "fails"] if plain else ["park", "retry", "reconcile", "fails"]
            return "call", draw(st.sampled_from(names)), labels.next()
        case "child":
            # An async child of a plain parent has an event loop of its own, and real time.
            is_plain = plain or draw(st.sampled_from([False, False, True]))
            caught = caught or draw(st.sampled_from([True, True, True, False]))
            return "child", draw(nodes(labels, depth - 1, is_plain)), caught
        case "together":
            kinds = st.sampled_from(["call"] + ["child", "child", "limited"] * (depth > 0))
            return "together", tuple(draw(ops(labels, depth, plain, draw(kinds), True))
                                     for _ in range(draw(st.integers(2, 3))))  # fmt: skip
        case "limited":
            # What it does before it sleeps takes no time.
            calls = [("call", draw(st.sampled_from(["plain", "retry", "reconcile"])), labels.next())
                     for _ in range(draw(st.integers(0, 2)))]  # fmt: skip
            node = Node(f"node {labels.next()}", ((*calls, ("sleep",)), (("message", "never"),)))
            return "limited", node
    return (kind, labels.next())
