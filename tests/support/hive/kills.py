"""Agents of Hive in processes that are killed: ``python -m tests.support.hive.kills``.

Arguments: the version, where its classes are ("doubles": the doubles stand in for them), the
subject, a directory, and how many kills. The classes are imported once; each life is a forked
process. Prints JSON: at how many points it was killed, how many effects were made twice or not at
all, and what went wrong.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import signal
import sys
import uuid
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

from eventlog import EventLog
from recovery import CheckpointManager, RecoverableAgent, Resolution, current_call, tool
from recovery.integrations import hive
from tests.support.hive import names as hive_names
from tests.support.pages import blocks

ITEMS = 4
PAGE = "hive.md"
# Of the page: the block for a version, and the programs that run with it, in order.
BLOCKS = {"main": (1, [2, 3]), "0.8.0": (4, [2, 3])}
REPEATS = {"chain_of_checkpoints": 1, "plan": 1, "page": 0}  # a node without a record of its start
PULL_REQUEST = """
from framework.graph.edge import EdgeCondition, EdgeSpec, GraphSpec
from framework.graph.executor import GraphExecutor as Orchestrator
from framework.graph.goal import Goal
from framework.graph.node import NodeProtocol, NodeResult, NodeSpec
from framework.graph.flexible_executor import FlexibleGraphExecutor
from framework.graph.plan import ActionSpec, ActionType, Plan, PlanStep, StepStatus
from framework.runtime.core import Runtime as DecisionTracker
"""


class Life:
    """What is done in one process, in which something may kill it."""

    def __init__(self, home: Path, version: str, point: str) -> None:
        self.home, self.version = home, version
        self.kind, self.at = point[:1], int(point[1:] or 0)
        self.records = self.sent = 0
        os.environ["HIVE_HOME"] = str(home)
        append = EventLog.append

        def counted(*args: Any, **options: Any) -> int:
            lsn = append(*args, **options)
            self.records += 1
            self.dies("r", self.records)
            return lsn

        EventLog.append = counted  # type: ignore[method-assign]
        self.names: dict[str, Any] = {"__name__": "page"}
        found = blocks(PAGE)
        imports = found[BLOCKS[version][0]] + found[0] if version in BLOCKS else PULL_REQUEST
        exec(imports, self.names)  # noqa: S102

    def dies(self, kind: str, count: int) -> None:
        if (self.kind, self.at) == (kind, count):
            os.kill(os.getpid(), signal.SIGKILL)

    def send(self, what: str, key: str = "") -> str:
        """An effect: one line of a file."""
        self.sent += 1
        sent = self.sent
        self.dies("b", sent)
        with (self.home / "effects").open("a") as file:
            file.write(f"{key} {what}\n")
        self.dies("a", sent)
        return f"sent {what}"

    def look(self, call: Any) -> Resolution:
        known = self.home / "effects"
        lines = known.read_text().splitlines() if known.exists() else []
        found = next((one for one in lines if one.split(" ", 1)[0] == call.idempotency_key), None)
        return Resolution.outcome(f"sent {found}") if found else Resolution.retry()

    def execute(self, use: Any) -> Any:
        call = hive.current_call()
        said = self.send(f"{use.name} {use.input['item']}", call.idempotency_key if call else "")
        return self.names["ToolResult"](use.id, said)


def _model(life: Life, items: int) -> Any:
    """Has the last tool that it has called for each item, again for those that were an error."""
    names = life.names

    base: Any = names["LLMProvider"]

    class Model(base):
        model = "offline"

        def complete(self, messages: Any, system: str = "", **options: Any) -> Any:
            return names["LLMResponse"](content="{}", model=self.model)

        async def stream(self, messages: Any, system: str = "", tools: Any = (), **_: Any) -> Any:
            name = [one.name for one in tools if one.name.startswith("send")][-1]
            asked, done = dict[str, Any](), set[Any]()
            for message in messages:
                for call in message.get("tool_calls") or []:
                    asked[call["id"]] = call["function"]
                said = str(message.get("content"))
                if message["role"] == "tool" and not said.startswith("ERROR"):
                    how = asked[message["tool_call_id"]]
                    if how["name"] == name:
                        done.add(json.loads(how["arguments"])["item"])
            left = [item for item in range(items) if item not in done]
            for item in left:
                yield names["ToolCallEvent"](
                    tool_use_id=uuid.uuid4().hex, tool_name=name, tool_input={"item": item}
                )
            if not left:
                text = f"{name * 3}: all of them are sent"
                yield names["TextDeltaEvent"](content=text, snapshot=text)
            yield names["FinishEvent"](
                stop_reason="tool_calls" if left else "stop", model="offline"
            )

    return Model()


def _graph(
    life: Life, ids: list[str], *, fans: bool = False, mode: str = "isolated", writes: bool = False
) -> Any:
    names = life.names
    pairs = list(pairwise(ids))
    if fans:
        pairs = [(ids[0], one) for one in ids[1:-1]] + [(one, ids[-1]) for one in ids[1:-1]]
    spec = names["GraphSpec"](
        id="g",
        goal_id="goal",
        entry_node=ids[0],
        terminal_nodes=[ids[-1]],
        nodes=[
            names["NodeSpec"](
                id=one,
                name=one,
                description=one,
                tools=[] if writes else [f"send_{one}"],
                output_keys=[one, f"out_{one}"] if writes else [],
            )
            for one in ids
        ],
        edges=[
            names["EdgeSpec"](
                id=f"{a}-{b}", source=a, target=b, condition=names["EdgeCondition"].ON_SUCCESS
            )
            for a, b in pairs
        ],
        **({} if life.version == "137" else {"conversation_mode": mode}),
    )
    goal = names["Goal"](id="goal", name="goal", description="do it")
    return spec, goal


def _recorded(life: Life, agent: Any) -> bool:
    made = RecoverableAgent(agent, hive.default_store(), max_recoveries=0)
    return bool(asyncio.run(made.run_with_recovery("task", "run"))["result"]["success"])


def loop(life: Life) -> bool:
    """One conversation, with twelve tools at once."""
    names = life.names
    files = names["FileConversationStore"](life.home / "conversations")
    with hive.RecordedLoop(
        "run", life.execute, files, after_crash=life.look, node_id="worker"
    ) as recorded:
        made = names["AgentLoop"](
            config=names["LoopConfig"](max_iterations=20),
            tool_executor=recorded.tool_executor,
            conversation_store=recorded.conversation_store,
        )
        tools = [names["Tool"](name="send", description="")]
        ctx = names["context"](_model(life, 12), tools, life.home / "runtime")
        result = asyncio.run(made.execute(ctx))
    return bool(result.success)


def _loops(life: Life, ids: str, **shape: Any) -> bool:
    names = life.names
    graph, goal = _graph(life, ids.split(), **shape)
    tools = [names["Tool"](name=f"send_{one}", description="") for one in ids.split()]

    def make(node: Any, recorded: Any) -> Any:
        return names["AgentLoop"](
            config=names["LoopConfig"](max_iterations=20),
            tool_executor=recorded.tool_executor,
            conversation_store=recorded.conversation_store,
        )

    def files(name: str) -> Any:
        return names["FileConversationStore"](life.home / "conversations" / name)

    async def agent(run: Any) -> Any:
        options: Any = {"after_crash": life.look}
        with hive.RecordedLoops(run, graph, make, life.execute, files, **options) as loops:
            executor = names["Orchestrator"](
                names["DecisionTracker"](life.home / "runtime"),
                hive.recorded_llm(run, _model(life, ITEMS)),
                tools,
                life.execute,
                node_registry=hive.recorded_nodes(run, loops),
                storage_path=life.home / "session",
            )
            return hive.recorded_result(run, await executor.execute(graph, goal, {}))

    return _recorded(life, agent)


def loops_in_one_conversation(life: Life) -> bool:
    """A chain of loops, as Hive's default is: continuous."""
    return _loops(life, "a b c", mode="continuous")


def loops_of_their_own(life: Life) -> bool:
    """A chain of loops, isolated."""
    return _loops(life, "a b c")


def loops_side_by_side(life: Life) -> bool:
    """A fan-out of loops."""
    return _loops(life, "a b c d e", fans=True)


def _nodes(life: Life, ids: list[str], **shape: Any) -> bool:
    names = life.names
    graph, goal = _graph(life, ids, writes=True, **shape)

    @tool(reconcile=life.look)
    def send_once(what: str) -> str:
        call = current_call()
        return life.send(what, call.idempotency_key if call else "")

    base: Any = names["NodeProtocol"]

    class Node(base):
        async def execute(self, ctx: Any) -> Any:
            return names["NodeResult"](success=True, output={ctx.node_id: send_once(ctx.node_id)})

    async def agent(run: Any) -> Any:
        nodes = hive.recorded_nodes(run, dict.fromkeys(ids, Node()), after_crash="retry")
        runtime = names["DecisionTracker"](life.home / "runtime")
        executor = names["Orchestrator"](runtime, node_registry=nodes)
        return hive.recorded_result(run, await executor.execute(graph, goal, {}))

    return _recorded(life, agent)


def chain(life: Life) -> bool:
    """Twenty nodes of one's own."""
    return _nodes(life, [f"n{i}" for i in range(20)])


def fan_out(life: Life) -> bool:
    """Eight branches of one's own."""
    return _nodes(life, ["first", *(f"b{i}" for i in range(8)), "join"], fans=True)


class _Same:
    """A runtime that says nothing, and gives each execution the same run id."""

    def start_run(self, *args: Any, **options: Any) -> str:
        return "run_1"

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **options: ""


def chain_of_checkpoints(life: Life) -> bool:
    """Twenty nodes of pull request 137, with its checkpoints."""
    names, ids = life.names, [f"n{i}" for i in range(20)]
    graph, goal = _graph(life, ids, writes=True)

    base: Any = names["NodeProtocol"]

    class Node(base):
        async def execute(self, ctx: Any) -> Any:
            ctx.memory.write(f"out_{ctx.node_id}", life.send(ctx.node_id))
            return names["NodeResult"](success=True)

    manager = CheckpointManager(life.home / "eventlog")
    memory, last = manager.restore_from_checkpoint("run_1")
    if last == ids[-1]:
        return True
    state = last and {"memory": memory, "resume_from": ids[ids.index(last) + 1]}
    executor = names["Orchestrator"](
        _Same(), node_registry=dict.fromkeys(ids, Node()), checkpoint_manager=manager
    )
    return bool(asyncio.run(executor.execute(graph, goal, session_state=state)).success)


def plan(life: Life) -> bool:
    """A plan of twenty steps of pull request 137."""
    names, ids = life.names, [f"s{i}" for i in range(20)]
    executor_of = names["FlexibleGraphExecutor"]
    vars(sys.modules[executor_of.__module__])["_run_id"] = "run_1"  # which it asks for in vain
    manager = CheckpointManager(life.home / "eventlog")
    memory, last = manager.restore_from_checkpoint("run_1")
    steps = [
        names["PlanStep"](
            id=one,
            description=one,
            action=names["ActionSpec"](
                action_type=names["ActionType"].FUNCTION,
                function_name="send",
                function_args={"what": one},
            ),
            expected_outputs=[f"out_{one}"],
            dependencies=ids[at - 1 : at] if at else [],
        )
        for at, one in enumerate(ids)
    ]
    for step in steps[: ids.index(last) + 1] if last else []:
        step.status = names["StepStatus"].COMPLETED
    made = names["Plan"](id="plan", goal_id="goal", description="twenty", steps=steps)
    goal = names["Goal"](id="goal", name="goal", description="do it")
    executor = executor_of(_Same(), functions={"send": life.send}, checkpoint_manager=manager)
    result = asyncio.run(executor.execute_plan(made, goal, dict(memory or {})))
    return bool(result.status.value == "completed")


def page(life: Life) -> bool:
    """The programs of docs/hive.md, one after the other."""
    shared, programs = BLOCKS[life.version]
    found = blocks(PAGE)
    names: dict[str, Any] = {"__name__": "page"}
    for at in (shared, 0, *programs):
        exec(found[at], names)  # noqa: S102 - our own page
    sent = Counter((life.home / "sent").read_text().splitlines())
    wanted = {f"send_mail {item}": 3 for item in range(3)}
    return bool(names["result"].success and names["done"]["result"]["success"] and sent == wanted)


SUBJECTS: dict[str, list[Callable[[Life], bool]]] = {
    "main": [
        loop,
        chain,
        fan_out,
        loops_in_one_conversation,
        loops_of_their_own,
        loops_side_by_side,
        page,
    ],
    "137": [chain, chain_of_checkpoints, plan],
}
SUBJECTS["0.8.0"] = SUBJECTS["main"]


def in_a_process(act: Callable[[], bool]) -> int:
    """How a process ended that does this: 0, or minus the signal."""
    pid = os.fork()
    if pid:
        _, status = os.waitpid(pid, 0)
        return os.waitstatus_to_exitcode(status)
    code = 1
    try:
        code = 0 if act() else 3
    except BaseException:
        logging.getLogger("hive_kills").exception("died")
    finally:
        sys.stderr.flush()
        os._exit(code)


def effects(home: Path) -> Counter[str]:
    found = home / "effects"
    lines = found.read_text().splitlines() if found.exists() else []
    return Counter(line.split(" ", 1)[1] for line in lines)


def tried(version: str, subject: Callable[[Life], bool], base: Path, kills: int) -> dict[str, Any]:
    """Kill it at so many of its points, and go on."""

    def life(home: Path, point: str) -> int:
        home.mkdir(parents=True, exist_ok=True)

        def act() -> bool:
            this = Life(home, version, point)
            done = subject(this)
            (home / "counts").write_text(json.dumps([this.records, this.sent]))
            return done

        return in_a_process(act)

    whole = base / "whole"
    found: dict[str, Any] = {"killed": 0, "twice": 0, "missing": 0, "wrong": []}
    if life(whole, "") != 0:
        return {**found, "wrong": ["without a kill"]}
    records, sent = json.loads((whole / "counts").read_text())
    points = [f"r{i + 1}" for i in range(records)]
    points += [f"{when}{i + 1}" for i in range(sent) for when in "ba"]
    wanted = effects(whole)
    for point in random.Random(version + subject.__name__).sample(points, min(kills, len(points))):
        home = base / point
        if life(home, point) != -signal.SIGKILL:
            continue  # side by side, another order has fewer records
        found["killed"] += 1
        ended = life(home, "")
        made = effects(home)
        twice, missing = (sum(one.values()) for one in (made - wanted, wanted - made))
        found["twice"] += twice
        found["missing"] += missing
        if ended or missing or twice > REPEATS.get(subject.__name__, 0):
            found["wrong"].append(f"{point}: exit {ended}, {dict(made - wanted)}")
    return found


def main() -> None:
    """See the module."""
    version, source, name, base, kills = sys.argv[1:]
    if not os.environ.get("HIVE_KILLS_LOG"):
        logging.disable(logging.CRITICAL)
    with ExitStack() as held:
        if source == "doubles":
            held.enter_context(hive_names.installed(version))
        else:
            sys.path.append(source)  # behind our own, for Hive has a package named tests as well
        (subject,) = (one for one in SUBJECTS[version] if one.__name__ == name)
        Path(base).mkdir(parents=True, exist_ok=True)
        Life(Path(base), version, "")  # so that all is imported before the first fork
        print(json.dumps(tried(version, subject, Path(base), int(kills))))


if __name__ == "__main__":
    main()
