"""Tools and tasks of LangGraph, recorded: killed at each append, interrupted, and asked again."""

from __future__ import annotations

import asyncio
import operator
import random
import time
import uuid
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import get_ident
from typing import Annotated, Any, TypedDict

import pytest

pytest.importorskip("langgraph")
pytest.importorskip("langchain")

from langchain.agents import create_agent
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import ToolException
from langchain_core.tools import tool as langchain_tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.func import entrypoint
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.prebuilt import ToolNode
from langgraph.types import Command, interrupt

from eventlog import LogLockedError
from recovery import CheckpointStore, InDoubtError, RecoveryError, Resolution
from recovery.integrations.langgraph import (
    EventLogSaver,
    abegin_or_resume,
    begin_or_resume,
    tools,
)
from recovery.integrations.langgraph.tools import RecordedThread, RecordedTools, run_id_of
from tests.support import outside
from tests.support.framework_lives import kills
from tests.support.kill_sweep import RUNS, approve, sweep
from tests.support.langchain_models import OfflineModel

effects: Counter[Any] = Counter()


@pytest.fixture(autouse=True)
def _fresh() -> None:
    effects.clear()


class Model(OfflineModel):
    """Asks for tools by how far the conversation is; gives each call another id."""

    turns: list[list[tuple[str, dict[str, Any]]]]
    place: Path | None = None  # where each request is kept

    def says(self, messages: Any) -> AIMessage:
        turn = sum(isinstance(one, AIMessage) for one in messages)
        if self.place is not None:
            with (self.place / "requests").open("a") as file:
                file.write(f"{transcript(messages)}\n")
        if turn >= len(self.turns):
            return AIMessage("done")
        calls = [
            {"name": name, "args": given, "id": uuid.uuid4().hex}
            for name, given in self.turns[turn]
        ]
        return AIMessage(f"turn {turn}", tool_calls=calls)


def did(what: str) -> str:
    return outside.did(what, f"did {what}")


@langchain_tool
def send(to: str) -> str:
    """Sends a mail."""
    return did(f"send {to}")


@langchain_tool(response_format="content_and_artifact")
def chart(points: list[int]) -> tuple[str, dict[str, Any]]:
    """Draws a chart."""
    return did(f"chart {points}"), {"points": points, "bytes": b"\x00\xff"}


def the_chart(call: Any) -> Resolution:
    """What somebody says of it who looks outside: the policy, or a person."""
    found = outside.truth(call)
    if call.tool != "chart" or found.how != "outcome":
        return found
    drawn = {"points": [1, 2], "bytes": b"\x00\xff"}
    return Resolution.outcome(
        ToolMessage(found.value, name="chart", tool_call_id=call.call_id, artifact=drawn)
    )


def settle(place: Path, how: str) -> None:
    if how == "WaitingError":
        return approve(place)
    assert how == "InDoubtError", how
    for status in CheckpointStore(place / RUNS).runs(state="in doubt"):
        for call in status.in_doubt:
            CheckpointStore(place / RUNS).run(status.run_id).resolve(call, the_chart(call))


@langchain_tool
async def book(seat: int) -> str:
    """Books a seat, for agents that are async."""
    await asyncio.sleep(0)
    return did(f"book {seat}")


@langchain_tool
def refuses(why: str) -> str:
    """Wants its arguments otherwise."""
    raise ValueError(why)


@langchain_tool
def refund(cents: int) -> str:
    """Refunds, when somebody has approved it."""
    if cents > 9:
        raise ToolException("too much: try less")
    return did(f"refund {cents}")


refund.handle_tool_error = True  # the model reads it, and tries again


def is_wrong(exc: Exception) -> str:
    return f"try again: {exc}"


Asked = list[tuple[str, dict[str, Any]]]
TURNS: list[Asked] = [
    [("send", {"to": "a"}), ("send", {"to": "b"}), ("chart", {"points": [1, 2]})],
    [("refuses", {"why": "too long"}), ("send", {"to": "a"})],
    [("send", {"to": "c"})],
]


def transcript(messages: list[Any]) -> list[Any]:
    """The messages, without the ids that are drawn anew."""
    found = []
    for message in messages:
        fields = message.model_dump(exclude={"id", "tool_call_id"})
        for call in fields.get("tool_calls", ()):
            del call["id"]
        found.append(repr(fields))
    return found


def an_agent(place: Path) -> Any:
    policies: Any = {"chart": {"reconcile": the_chart}, "refund": {"needs_approval": True}}
    recorded = RecordedTools(place / RUNS, policies, park_after_s=0)
    turns: list[Asked] = [
        TURNS[0],
        [("refund", {"cents": 10}), ("send", {"to": "c"})],
        [("refund", {"cents": 3})],
    ]
    with EventLogSaver(place / RUNS) as saver:
        agent = create_agent(
            Model(turns=turns, place=place),
            [send, chart, refund],
            middleware=[recorded],
            checkpointer=saver,
        )
        with recorded.thread(agent, "thread 1") as config:
            state = begin_or_resume(agent, {"messages": [HumanMessage("go")]}, config)
    # A request whose answer no checkpoint has is made again, with the same body.
    requests = sorted({*(place / "requests").read_text().splitlines()})
    return [*transcript(state["messages"]), requests]


class Chat(TypedDict):
    messages: Annotated[list[Any], add_messages]


def a_graph(place: Path) -> Any:
    """A graph of its own, async, with a ToolNode in which all tools of a turn are one task."""
    recorded = RecordedTools(str(place / RUNS), {"chart": {"reconcile": the_chart}})
    tools = ToolNode(
        [send, chart, book, refuses],
        handle_tool_errors=is_wrong,
        wrap_tool_call=recorded.wrap_tool_call,
        awrap_tool_call=recorded.awrap_tool_call,
    )
    turns = [[*TURNS[0], ("book", {"seat": 7})], *TURNS[1:]]
    model = Model(turns=turns)

    def ask(state: Chat) -> Any:
        return {"messages": [model.invoke(state["messages"])]}

    builder = StateGraph(Chat)
    builder.add_node("model", ask)
    builder.add_node("tools", tools)
    builder.add_edge(START, "model")
    builder.add_conditional_edges(
        "model",
        lambda state: "tools" if state["messages"][-1].tool_calls else "__end__",
        ["tools", "__end__"],
    )
    builder.add_edge("tools", "model")

    async def main() -> Any:
        async with EventLogSaver(place / RUNS) as saver:
            graph = builder.compile(checkpointer=saver)
            async with recorded.thread(graph, "1") as config:
                return await abegin_or_resume(graph, {"messages": [HumanMessage("go")]}, config)

    return transcript(asyncio.run(main())["messages"])


def a_workflow(place: Path) -> Any:
    recorded = RecordedTools(place / RUNS)

    @recorded.task
    def fetch(what: str) -> dict[str, str]:
        return outside.did(f"fetch {what}", {"fetched": what})

    @recorded.task(name="store")
    def put(what: str, times: int = 1) -> int:
        return outside.did(f"store {what} {times}", times)

    saver = EventLogSaver(place / RUNS)

    @entrypoint(checkpointer=saver)
    def workflow(names: list[str]) -> Any:
        fetched = [fetch(name) for name in names]  # at once
        found = [one.result() for one in fetched]
        stored = [put(str(one), times=n).result() for n, one in enumerate(found)]
        return [found, stored, fetch("a").result()]

    with saver, recorded.thread(workflow, "1") as config:
        return begin_or_resume(workflow, ["a", "b", "a"], config)


@kills(4)
@pytest.mark.parametrize("program", [an_agent, a_graph, a_workflow])
def test_a_killed_graph_ends_as_the_one_that_nobody_killed(
    program: Callable[[Path], Any], points: int, tmp_path: Path, rng: random.Random
) -> None:
    found = sweep(program, tmp_path, rng, points=points, settle=settle)
    assert found.bad == []
    assert found.doubted or found.points < 2 * found.appends  # a few may all miss the tools


# -- in one process


def test_a_tool_that_asks_a_person_is_made_again_with_the_answer(tmp_path: Path) -> None:
    @langchain_tool
    def pays(amount: int) -> str:
        """Pays, if somebody says yes."""
        effects["asked"] += 1
        said = interrupt(f"pay {amount}?")
        effects["paid"] += 1
        return f"{said}, paid {amount}"

    @langchain_tool
    def counts(n: int) -> str:
        """Counts."""
        effects["counted"] += 1
        return str(n)

    saver = InMemorySaver()

    def agent() -> tuple[Any, Any]:
        recorded = RecordedTools(tmp_path)
        model = Model(turns=[[("pays", {"amount": 7}), ("counts", {"n": 1})]])
        made = create_agent(model, [pays, counts], middleware=[recorded], checkpointer=saver)
        return made, recorded.thread(made, "1")

    made, thread = agent()
    with thread as config:
        state = made.invoke({"messages": [HumanMessage("go")]}, config, durability="sync")
        assert [one.value for one in state["__interrupt__"]] == ["pay 7?"]
    made, thread = agent()
    with thread as config:
        state = made.invoke(Command(resume="yes"), config, durability="sync")
    assert [m.content for m in state["messages"][2:]] == ["yes, paid 7", "1", "done"]
    assert effects == {"asked": 2, "paid": 1, "counted": 1}
    assert CheckpointStore(tmp_path).run(run_id_of("1")).status().state == "finished"


def test_a_tool_that_changes_the_state_of_its_graph_is_served(tmp_path: Path) -> None:
    class State(Chat):
        total: Annotated[int, operator.add]

    @langchain_tool
    def adds(n: int) -> Any:
        """Adds."""
        effects["added"] += 1
        return Command(update={"total": n, "messages": [ToolMessage("added", tool_call_id="1")]})

    recorded = RecordedTools(tmp_path)
    node = ToolNode([adds], wrap_tool_call=recorded.wrap_tool_call)
    builder = StateGraph(State)
    builder.add_node("tools", node)
    builder.add_edge(START, "tools")
    graph = builder.compile()
    asking = AIMessage("", tool_calls=[{"name": "adds", "args": {"n": 3}, "id": "1"}])
    thread = recorded.thread(graph, "t")
    with pytest.raises(KeyError), thread as config:
        for _ in range(2):
            state = graph.invoke({"messages": [asking], "total": 1}, config)
            assert (state["total"], state["messages"][-1].content) == (4, "added")
        raise KeyError
    with recorded.thread(graph, "t") as config:
        assert graph.invoke({"messages": [asking], "total": 1}, config)["total"] == 4
    assert effects == {"added": 1}


def test_a_failure_that_stopped_the_graph_is_made_again_when_it_goes_on(tmp_path: Path) -> None:
    saver = InMemorySaver()

    @langchain_tool
    def flaky(n: int) -> str:
        """Fails at first."""
        effects["flaky"] += 1
        if effects["flaky"] < 3:
            raise ConnectionError(f"no line {effects['flaky']}")
        return "well"

    for attempt in range(3):
        recorded = RecordedTools(tmp_path)
        agent = create_agent(
            Model(turns=[[("flaky", {"n": 1})]]),
            [flaky],
            middleware=[recorded],
            checkpointer=saver,
        )
        try:
            with recorded.thread(agent, "1") as config:
                inputs = None if attempt else {"messages": [HumanMessage("go")]}
                state = agent.invoke(inputs, config, durability="sync")
        except ConnectionError as exc:
            assert str(exc) == f"no line {attempt + 1}"
    assert state["messages"][-2].content == "well"
    assert effects == {"flaky": 3}


@pytest.mark.parametrize("plain", [True, False], ids=["plain", "async"])
def test_a_denial_is_told_to_the_model_and_nobody_is_asked_again(
    plain: bool, tmp_path: Path
) -> None:
    outside.moved_to(tmp_path)

    def asks(call: Any) -> bool:
        effects["asked"] += 1
        return effects["asked"] < 3  # else it would ask for ever

    policy: Any = {"send": {"needs_approval": asks, "approval_timeout_s": 0.001}}
    recorded = RecordedTools(tmp_path, policy)
    node = ToolNode(
        [send],
        wrap_tool_call=recorded.wrap_tool_call,
        awrap_tool_call=recorded.awrap_tool_call,
    )
    builder = StateGraph(Chat)
    builder.add_node("tools", node)
    builder.add_edge(START, "tools")
    graph = builder.compile()
    call = {"name": "send", "args": {"to": "a"}, "id": "1"}
    given: Any = {"messages": [AIMessage("", tool_calls=[call])]}
    for _ in range(2):  # the second process is served the denial
        with pytest.raises(KeyError), recorded.thread(graph, "t") as config:
            state = (
                graph.invoke(given, config) if plain else asyncio.run(graph.ainvoke(given, config))
            )
            answer = state["messages"][-1]
            assert (answer.status, answer.tool_call_id) == ("error", "1")
            assert answer.content.startswith("send was denied: no decision came in time")
            raise KeyError
    assert effects == {"asked": 1}


def test_a_call_in_doubt_stops_the_thread_whatever_handles_errors(tmp_path: Path) -> None:
    class Died(BaseException):
        pass

    @langchain_tool
    def pays(amount: int) -> str:
        """Pays."""
        effects["paid"] += 1
        if effects["paid"] == 1:
            raise Died
        return "paid"

    saver = InMemorySaver()

    def invoke(inputs: Any) -> Any:
        recorded = RecordedTools(tmp_path)
        agent = create_agent(
            Model(turns=[[("pays", {"amount": 1})]]),
            [pays],
            middleware=[recorded],
            checkpointer=saver,
        )
        with recorded.thread(agent, "1") as config:
            return agent.invoke(inputs, config, durability="sync")

    with pytest.raises(Died):
        invoke({"messages": [HumanMessage("go")]})
    for _ in range(2):
        with pytest.raises(InDoubtError) as caught:
            invoke(None)
    handle = CheckpointStore(tmp_path).run(run_id_of("1"))
    assert [call.name for call in handle.status().in_doubt] == [f"pays#{caught.value.calls[0].lsn}"]
    said = ToolMessage("paid by hand", tool_call_id=caught.value.calls[0].call_id, name="pays")
    handle.resolve(caught.value.calls[0], Resolution.outcome(said))
    assert invoke(None)["messages"][-2].content == "paid by hand"
    assert effects == {"paid": 1}


def test_a_task_waits_for_the_checkpoint_that_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without one, a process that resumes the thread would begin it anew, with other tasks."""

    class Late(InMemorySaver):
        def put(self, *args: Any) -> Any:
            time.sleep(0.05)
            return super().put(*args)

    saver, recorded = Late(), RecordedTools(tmp_path)

    @recorded.task
    def fetch(thread_id: str) -> str:
        effects[saver.get_tuple({"configurable": {"thread_id": thread_id}}) is not None] += 1
        return thread_id

    @entrypoint(checkpointer=saver)
    def work(thread_id: str) -> str:
        return fetch(thread_id).result()

    def lived(thread_id: str, **options: Any) -> Any:
        with recorded.thread(work, thread_id) as config:
            return begin_or_resume(work, thread_id, config, **options)

    assert lived("1") == "1"
    assert effects == {True: 1}
    monkeypatch.setattr(tools, "CHECKPOINT_WAIT_S", 0)
    with pytest.raises(RecoveryError, match=r"thread '2' was not saved in 0 s. The task was not"):
        lived("2")
    assert lived("3", durability="exit") == "3"  # saves nothing before
    assert effects == {True: 1, False: 1}


def test_tasks_that_wait_take_no_thread_from_what_they_wait_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are plain, so that the event loop executes them in its threads: here it has two."""
    recorded, threads, waiting = RecordedTools(tmp_path), ThreadPoolExecutor(2), Counter[int]()

    class Late(EventLogSaver):
        def put(self, *args: Any) -> Any:
            # The first checkpoint, before which the next is not saved, comes when both tasks wait,
            # for that or for a thread.
            while not (waiting and waiting.total() + threads._work_queue.qsize() >= 2):
                time.sleep(0.001)
            return super().put(*args)

    def saved(thread: RecordedThread, until: Any = RecordedThread.step_is_saved) -> None:
        waiting[get_ident()] += 1
        until(thread)

    monkeypatch.setattr(RecordedThread, "step_is_saved", saved)

    @recorded.task
    def doubled(n: int) -> int:
        return 2 * n

    async def both(state: Any) -> Any:
        return {"messages": [str(await asyncio.gather(doubled(1), doubled(2)))]}

    async def begins(state: Any) -> Any:
        return {"messages": []}

    builder = StateGraph(Chat)
    builder.add_sequence([begins, both])
    builder.add_edge(START, "begins")

    async def main() -> Any:
        asyncio.get_running_loop().set_default_executor(threads)
        async with Late(tmp_path) as saver:
            graph = builder.compile(checkpointer=saver)
            async with recorded.thread(graph, "1") as config:
                return await graph.ainvoke({"messages": []}, config, durability="async")

    assert asyncio.run(main())["messages"][-1].content == "[2, 4]"


def test_many_threads_at_once_and_one_that_is_open_elsewhere(tmp_path: Path) -> None:
    recorded = RecordedTools(tmp_path)

    @langchain_tool
    async def counts(n: int) -> str:
        """Counts."""
        await asyncio.sleep(0)
        effects[n] += 1
        return str(n)

    agent = create_agent(
        Model(turns=[[("counts", {"n": n}) for n in range(5)]]),
        [counts],
        middleware=[recorded],
        checkpointer=InMemorySaver(),
    )

    async def one(name: str) -> Any:
        async with recorded.thread(agent, name) as config:
            return await agent.ainvoke({"messages": [HumanMessage("go")]}, config)

    async def main() -> None:
        await asyncio.gather(*(one(f"{n}") for n in range(8)))

    asyncio.run(main())
    assert effects == dict.fromkeys(range(5), 8)
    with recorded.thread(agent, "1"), pytest.raises(LogLockedError):
        RecordedTools(tmp_path).thread(agent, "1").__enter__()
    with pytest.raises(RecoveryError, match="is not open"):
        asyncio.run(
            agent.ainvoke({"messages": [HumanMessage("go")]}, {"configurable": {"thread_id": "x"}})
        )


@pytest.mark.parametrize("thread_id", ["a/b", "", "ü" * 300, ".", "\ud800", "A b"])
def test_any_text_is_a_thread_id(thread_id: str, tmp_path: Path) -> None:
    recorded = RecordedTools(tmp_path)
    graph = create_agent(Model(turns=[]), [], middleware=[recorded])
    with recorded.thread(graph, thread_id):
        pass
    [status] = CheckpointStore(tmp_path).runs()
    assert status.run_id == run_id_of(thread_id)
    assert len({run_id_of(one) for one in ("a b", "a_b", "a/b")}) == 3


def test_a_policy_that_is_none_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="after_crsh"):
        RecordedTools(tmp_path, {"send": {"after_crsh": "retry"}})
