"""The public API as its users write it. Not run: mypy --strict checks it (see test_typing.py)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from functools import partial
from typing import Any, assert_type

from eventlog import EventLog, LogReader, Record, Snapshot
from eventlog.encryption import Encryption
from recovery import (
    Budget,
    Call,
    Checkpoint,
    CheckpointConfig,
    CheckpointManager,
    CheckpointStore,
    InDoubtError,
    OutcomeUnknown,
    RecoverableAgent,
    Resolution,
    Run,
    RunResult,
    SyncRun,
    Usage,
    current_call,
    tool,
)
from recovery.control.resolve import resolve
from recovery.errors import BudgetError, RunFailedError
from recovery.graph import (
    END,
    ExecutionResult,
    FlexibleGraphExecutor,
    Graph,
    GraphExecutor,
    NodeContext,
    NodeResult,
    PlanStep,
    RestoredCheckpoint,
)
from recovery.inspect.follow import events
from recovery.reports import Progress, RecoveryReport, RunEvent, Validity
from recovery.stores import FileStore, MemoryStore, RunStore
from recovery.testing import CrashReport, Finding, crash_everywhere

# -- tools keep their types


@tool
def send_email(to: str, body: str, *, cc: Sequence[str] = ()) -> str:
    call = current_call()
    return call.idempotency_key if call is not None else "outside of a run"


@tool(after_crash="retry")
async def search(query: str) -> list[str]:
    return [query]


def found_in_mailbox(call: Call) -> Resolution:
    return Resolution.outcome(f"sent to {call.args[0]}") if call.args else Resolution.retry()


async def ask_the_bank(call: Call) -> Resolution:
    await asyncio.sleep(0)
    return Resolution.unknown()


@tool(reconcile=found_in_mailbox, raises=[ConnectionError], name="mail")
def send_more(to: str) -> str:
    return to


@tool(reconcile=ask_the_bank)
async def transfer(amount: int) -> int:
    return amount


assert_type(send_email("you", "hello", cc=["me"]), str)


async def tools_outside_of_a_run() -> None:
    assert_type(await search("otters"), list[str])
    assert_type(await transfer(5), int)


send_email("you")  # type: ignore[call-arg]
send_email("you", 5)  # type: ignore[arg-type]
tool(after_crash="ignore")  # type: ignore[call-overload]


class Mailer:
    def send(self, to: str) -> str:
        return to


assert_type(tool(Mailer().send)("you"), str)


class Mailbox:
    """Tools in a class."""

    account = "work"

    @tool(identity=["self.account", "to"])
    def send(self, to: str) -> str:
        return to

    @tool(identity=lambda self, to: self.account)
    async def later(self, to: str) -> str:
        return to

    @classmethod
    @tool
    def of(cls, to: str) -> int:
        return len(to)

    @staticmethod
    @tool
    async def count(to: str) -> int:
        return len(to)


async def calls_keep_their_types(run: Run, box: Mailbox, tools: dict[str, Any]) -> None:
    assert_type(await run.call(send_email, "you", "hello", cc=["me"]), str)
    assert_type(await run.call(send_email, "you", "hello", call_id="c1"), str)
    assert_type(await run.call(search, "otters"), list[str])
    assert_type(await run.call(search, "otters", call_id="c1"), list[str])
    assert_type(await run.call(partial(send_email, "you"), "hello"), str)
    assert_type(await run.call(box.send, "you"), str)
    assert_type(await run.call(box.later, "you"), str)
    assert_type(await box.later("you"), str)
    assert_type(await run.call(Mailbox.of, "you"), int)
    assert_type(await run.call(Mailbox.count, "you"), int)
    await run.call(tools["any"], 1, **tools)
    await run.call(send_email, "you")  # type: ignore[call-overload]
    await run.call(send_email, "you", 5)  # type: ignore[call-overload]
    await run.call(box.send)  # type: ignore[call-overload]
    await run.call(box.later, to=5)  # type: ignore[call-overload]


def plain_calls_keep_their_types(run: SyncRun) -> None:
    assert_type(run.call(send_email, "you", "hello"), str)
    assert_type(run.call(search, "otters"), list[str])
    run.call(search, 5)  # type: ignore[call-overload]
    assert_type(run.child(plain_agent, "task"), str)
    for chunk in run.stream(plain_words, "otters"):
        assert_type(chunk, str)


async def words(query: str) -> AsyncIterator[str]:
    yield query


def plain_words(query: str) -> Iterator[str]:
    yield query


async def children_and_streams_keep_their_types(run: Run) -> None:
    assert_type(await run.child(agent, "task"), str)
    assert_type(await run.child(partial(agent), "task", name="x"), str)
    assert_type(await run.child(RecoverableAgent(agent), "task"), str)
    assert_type(await run.child(plain_agent, "task", max_recoveries=1), str)
    async with run.stream(words, "otters") as stream:
        async for chunk in stream:
            assert_type(chunk, str)
    async for chunk in run.stream(plain_words, "otters", call_id="c1"):
        assert_type(chunk, str)
    run.stream(words)  # type: ignore[call-overload]


# -- agents


async def ask_model(messages: list[Any]) -> dict[str, Any]:
    return {"content": "done", "tool_calls": []}


async def agent(run: Run) -> str:
    run.messages.append({"role": "user", "content": run.task})
    async for step in run.steps():
        assert_type(step, int)
        reply = await run.call(ask_model, run.messages)
        run.messages.append(reply)
        if not reply["tool_calls"]:
            return str(reply["content"])
        for call in reply["tool_calls"]:
            answer = await run.call(send_email, **call["args"], call_id=call["id"])
            if isinstance(answer, OutcomeUnknown):
                answer = str(answer)
            run.messages.append(answer)
        direct = await search("otters")
        assert_type(direct, list[str])
        run.state["found"] = direct
        run.state = {**run.state, "at": run.now()}
        run.messages = run.messages[-10:]
        run.messages += [{"role": "system"}]
    raise AssertionError


def plain_agent(run: SyncRun) -> str:
    for step in run.steps():
        assert_type(step, int)
        run.messages.append(run.call(send_email, "you", f"step {step}"))
        if run.random() < 0.5:
            return run.uuid()
    raise AssertionError


async def main() -> None:
    of = RecoverableAgent(agent, CheckpointStore("~/.eventlog"), checkpoint_every_n=3)
    try:
        found = await of.run_with_recovery("research otters", "run_001", takeover=False)
    except InDoubtError as exc:
        for call in exc.calls:
            resolve(of.store, exc.run_id, call.lsn, Resolution.retry(), who="me", why="looked")
    except RunFailedError as exc:
        print(exc.type_name, exc.message, exc.traceback, exc.call)
    else:
        report: RecoveryReport = found["report"]
        print(found["result"], found["recovered_from_step"], report.time_s, str(report))


def plain_main() -> None:
    of = RecoverableAgent(plain_agent)
    assert_type(of.run_with_recovery_sync("task", "run"), RunResult[str])
    assert_type(of.run_with_recovery_sync("task", "run")["result"], str)
    assert_type(of.resume_sync("run")["recovered_from_step"], int)
    assert_type(of.recovery_count, int)
    assert_type(of.store, CheckpointStore)


# -- watching a run, and its budget


def show(event: RunEvent) -> None:
    assert_type(event.progress, Progress)
    assert_type(event.progress.usage, Usage)
    assert_type(event.duration_s, float | None)
    print(event.kind, event.lsn, event.tool, event.value, event)


@tool(after_crash="retry", usage=lambda reply: Usage(len(reply), 1, cost=0.5))
def ask(prompt: str) -> str:
    return prompt


async def watch(store: CheckpointStore) -> None:
    budget = Budget(steps=5, calls=10, seconds=60, tokens=1000, cost=2.5, on_exceeded="fail")
    of = RecoverableAgent(agent, store, on_event=show, budget=budget)
    try:
        await of.run_with_recovery("task", "run")
    except BudgetError as exc:
        print(exc.used, exc.reached)
    async for event in of.run("run").events(after=5):
        assert_type(event, RunEvent)
    for event in events(store, "run", until="now"):
        assert_type(event, RunEvent)


def frugal(run: SyncRun) -> None:
    assert_type(run.usage(), Usage)
    assert_type(ask("why?"), str)


# -- checkpoints on their own


def checkpoints() -> None:
    backends: list[RunStore] = [MemoryStore(), FileStore("/tmp/x", durability="process")]
    with CheckpointStore(backends[0]) as store:
        made = Checkpoint("c1", "run", 1, {"a": 1}, ["hello"], [], 0.0)
        assert_type(store.save(made), str)
        assert_type(store.load_latest("run"), Checkpoint | None)
        assert_type(store.load_at_step("run", 1), Checkpoint | None)
        assert_type(store.validate(made), bool)
        assert_type(store.check(made), Validity)
        assert_type(made.checksum, str)


# -- the log on its own


def log() -> None:
    with EventLog.open("/tmp/log", durability="power") as opened:
        assert_type(opened.append("tool_result", {"call": 7}), int)
        assert_type(opened.append_batch([("a", 1), ("b", 2)]), list[int])
        opened.append_snapshot({"state": 1})
        opened.commit()
        for record in opened.records(start=1):
            assert_type(record, Record)
        assert_type(opened.latest_snapshot(), Snapshot | None)
    key = Encryption({"2026-11": bytes(32)}.get, "2026-11", accept_clear=True)
    with EventLog.open("/tmp/secret", encryption=key) as secret:
        assert_type(secret.append("event", 1), int)
    assert_type(EventLog.read("/tmp/secret", encryption=Encryption(bytes(32))), LogReader)
    FileStore("/tmp/runs", encryption=key)
    with EventLog.read("/tmp/log") as reader:
        for record in reader.records(follow=True):
            print(record.lsn, record.kind, record.body, record.time_ns)


# -- testing an agent


def make_agent(world: list[str]) -> RecoverableAgent:
    return RecoverableAgent(agent, CheckpointStore())


def test_my_agent_survives() -> None:
    sent: list[str] = []
    report = crash_everywhere(make_agent, task="research otters")
    assert_type(report, CrashReport)
    assert report.ok, str(report)
    report = crash_everywhere(
        agent,
        "task",
        setup=list[str],
        effects=lambda: sent,
        watch=[print, send_email],
        resolve=lambda call: Resolution.outcome(call.tool),
        points="all",
        seed=7,
        power_loss=True,
        strict=True,
        timeout_s=2.5,
    )
    assert_type(report.findings, tuple[Finding, ...])
    crash_everywhere(plain_agent, points=[report.findings[0].point])


# -- graphs


async def graphs(storage: str) -> None:
    graph = Graph("g", max_visits=10)

    @graph.node("a", join=True, timeout_s=1.0)
    async def node(context: NodeContext) -> NodeResult:
        context.memory["x"] = context.input_data
        return NodeResult(output={"y": await context.call(len, "abc")}, next_node=END)

    graph.node("b", lambda context: None, pause=True)
    graph.edge("a", "b", lambda output, memory: output["y"] == memory["y"])
    graph.node("c", node, no_option=True)  # type: ignore[call-overload]
    manager = CheckpointManager(storage, CheckpointConfig(every_n_nodes=2))
    executor = GraphExecutor(checkpoint_manager=manager, budget=Budget(calls=5))
    assert_type(await executor.execute(graph, "goal", {"x": 1}), ExecutionResult)
    assert_type(await executor.resume(graph, "run"), ExecutionResult)
    assert_type(manager.restore("run"), RestoredCheckpoint | None)
    plans = FlexibleGraphExecutor(lambda context: [PlanStep("a", "len")], {"len": len})
    assert_type(await plans.execute("goal"), ExecutionResult)
