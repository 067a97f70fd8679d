"""RecordedCalls: what it records of a LangChain agent, and what it leaves alone."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("langchain")

from langchain.agents import create_agent
from langchain.agents.structured_output import ToolStrategy
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool as langchain_tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt

from recovery import (
    CheckpointStore,
    InDoubtError,
    RecoverableAgent,
    Resolution,
    Run,
    SyncRun,
    register,
)
from recovery.errors import WaitingError
from recovery.integrations.langgraph.tools import RecordedCalls, RecordedTools
from tests.support.langchain_models import OfflineModel

RUN = "run-1"


@dataclass
class Answer:
    """The answer."""

    number: int


register(Answer)


class Model(OfflineModel):
    """Says these in turn, whatever it is asked."""

    said: list[AIMessage]
    asked: list[Any]

    def says(self, messages: Any) -> AIMessage:
        self.asked.append(messages)
        return self.said[len(self.asked) - 1]


def wants(name: str, **given: Any) -> AIMessage:
    used = {"input_tokens": 7, "output_tokens": 2, "total_tokens": 9}
    call = {"name": name, "args": given, "id": f"{name}-1"}
    return AIMessage("", tool_calls=[call], usage_metadata=used)


@langchain_tool
def dies(why: str) -> str:
    """Takes the process with it, as far as the run can tell."""
    raise KeyboardInterrupt(why)


def lived(graph: Any, place: Path) -> Any:
    found = []

    async def work(run: Run) -> int:
        found.append(await graph.ainvoke({"messages": [HumanMessage("go")]}))
        return run.usage().tokens

    agent: RecoverableAgent[Any] = RecoverableAgent(
        work, CheckpointStore(place), check_locals=False
    )
    used = asyncio.run(agent.run_with_recovery("", RUN))["result"]
    return found[-1], used


def test_outside_of_a_run_nothing_is_recorded() -> None:
    model = Model(said=[AIMessage("done")], asked=[])
    graph = create_agent(model, middleware=[RecordedCalls()])
    state = graph.invoke({"messages": [HumanMessage("go")]})
    assert state["messages"][-1].content == "done"


def test_a_wrong_option_is_an_error_at_once() -> None:
    with pytest.raises(TypeError, match="after_chrash"):
        RecordedCalls({"search": {"after_chrash": "retry"}})
    with pytest.raises(TypeError, match="temperature"):
        RecordedCalls(model={"temperature": 0})


def test_what_a_model_gives_is_not_redacted_in_one_place_alone(tmp_path: Path) -> None:
    for made in (RecordedCalls, partial(RecordedTools, tmp_path)):
        with pytest.raises(ValueError, match=r"pay: redact= cannot hide .* Encrypt the store"):
            made({"pay": {"redact": ["card"]}})


def test_several_interrupts_at_once_of_one_tool_are_refused(tmp_path: Path) -> None:
    """A graph in a tool gives them; the tool's outcome has room for one."""
    inner = StateGraph(dict)
    for name in ("left", "right"):
        inner.add_node(name, lambda state, name=name: {"said": interrupt(f"{name}?")})
        inner.add_edge(START, name)
    asks_twice = inner.compile()

    @langchain_tool
    def order(what: str) -> str:
        """Orders."""
        return str(asks_twice.invoke({"what": what}))

    model = Model(said=[wants("order", what="tea"), AIMessage("done")], asked=[])

    def work(run: SyncRun) -> Any:
        graph = create_agent(
            model, [order], middleware=[RecordedCalls()], checkpointer=InMemorySaver()
        )
        config: Any = {"configurable": {"thread_id": "t"}}
        return graph.invoke({"messages": [HumanMessage("go")]}, config)

    agent: RecoverableAgent[Any] = RecoverableAgent(
        work, CheckpointStore(tmp_path), check_locals=False
    )
    for _ in range(2):  # the failure is recorded, and served
        with pytest.raises(Exception, match="several interrupts at once"):
            agent.run_with_recovery_sync("", RUN)


def test_tools_ask_at_once(tmp_path: Path) -> None:
    """Each by one interrupt of its own, in one step."""
    effects: list[str] = []

    @langchain_tool
    def order(what: str) -> str:
        """Orders."""
        effects.append(f"{what} {interrupt(what)}")
        return "ordered"

    both = wants("order", what="tea")
    both.tool_calls.append({**both.tool_calls[0], "args": {"what": "cup"}, "id": "order-2"})
    model = Model(said=[both, AIMessage("done")], asked=[])
    config: Any = {"configurable": {"thread_id": "t"}}

    def work(run: SyncRun) -> Any:
        graph = create_agent(
            model, [order], middleware=[RecordedCalls()], checkpointer=InMemorySaver()
        )
        state = graph.invoke({"messages": [HumanMessage("go")]}, config)
        asked = {one.value: one.id for one in state["__interrupt__"]}
        said = run.wait_for("yes")
        answers = {asked[what]: answer for what, answer in said.items()}
        state = graph.invoke(Command(resume=answers), config)
        return [one.content for one in state["messages"]]

    store = CheckpointStore(tmp_path)
    agent: RecoverableAgent[Any] = RecoverableAgent(work, store, check_locals=False, park_after_s=0)
    with pytest.raises(WaitingError):
        agent.run_with_recovery_sync("", RUN)
    assert effects == []
    store.run(RUN).signal("yes", {"tea": "green", "cup": "blue"})
    messages = agent.run_with_recovery_sync("", RUN)["result"]
    assert messages[2:] == ["ordered", "ordered", "done"]
    assert sorted(effects) == ["cup blue", "tea green"]
    assert len(model.asked) == 2


def test_a_doubt_that_a_person_settles_reaches_the_model_as_a_message(tmp_path: Path) -> None:
    model = Model(said=[wants("dies", why="power"), AIMessage("done")], asked=[])
    graph = create_agent(model, [dies], middleware=[RecordedCalls()])
    with pytest.raises(KeyboardInterrupt):
        lived(graph, tmp_path)
    with pytest.raises(InDoubtError):
        lived(graph, tmp_path)
    run = CheckpointStore(tmp_path).run(RUN)
    (call,) = run.status().in_doubt
    assert (call.tool, call.call_id) == ("dies", "dies-1")
    run.resolve(call, Resolution.outcome({"lived": True}))
    state, used = lived(graph, tmp_path)
    assert len(model.asked) == 2, "what has an answer is not asked again"
    answer = model.asked[1][-1]
    assert isinstance(answer, ToolMessage) and answer.tool_call_id == "dies-1"
    assert answer.content == '{"lived": true}'
    assert state["messages"][-1].content == "done"
    assert used == 9


@pytest.mark.parametrize("plain", [True, False], ids=["plain", "async"])
def test_a_denial_is_told_to_the_model(plain: bool, tmp_path: Path) -> None:
    model = Model(said=[wants("dies", why="power"), AIMessage("done")], asked=[])
    policy: Any = {"dies": {"needs_approval": True, "approval_timeout_s": 0.001}}
    graph = create_agent(model, [dies], middleware=[RecordedCalls(policy)])
    given: Any = {"messages": [HumanMessage("go")]}
    if plain:
        agent: RecoverableAgent[Any] = RecoverableAgent(
            lambda run: graph.invoke(given)["messages"][-1].content,
            CheckpointStore(tmp_path),
            check_locals=False,
        )
        assert agent.run_with_recovery_sync("", RUN)["result"] == "done"
    else:
        assert lived(graph, tmp_path)[0]["messages"][-1].content == "done"
    answer = model.asked[1][-1]
    assert isinstance(answer, ToolMessage) and answer.status == "error"
    assert str(answer.content).startswith("dies was denied: no decision came in time")


def test_a_structured_response_is_served(tmp_path: Path) -> None:
    model = Model(said=[wants("Answer", number=7)], asked=[])
    graph = create_agent(model, middleware=[RecordedCalls()], response_format=ToolStrategy(Answer))
    deaths = [KeyboardInterrupt("after the reply")]
    found = []

    async def work(run: Run) -> None:
        found.append(await graph.ainvoke({"messages": [HumanMessage("go")]}))
        if deaths:
            raise deaths.pop()

    agent: RecoverableAgent[Any] = RecoverableAgent(
        work, CheckpointStore(tmp_path), check_locals=False
    )
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(agent.run_with_recovery("", RUN))
    asyncio.run(agent.run_with_recovery("", RUN))
    assert [one["structured_response"] for one in found] == [Answer(7), Answer(7)]
    assert len(model.asked) == 1


@pytest.mark.parametrize("plain", [True, False], ids=["plain", "async"])
def test_a_tool_asks_a_person_by_interrupts(plain: bool, tmp_path: Path) -> None:
    """With a checkpointer in memory, which each process fills again."""
    effects: list[Any] = []

    @langchain_tool
    def order(what: str) -> str:
        """Orders."""
        said = [interrupt(f"{what}?"), interrupt("sure?")]
        effects.append(said)
        return f"ordered: {said}"

    @langchain_tool
    def pay(cents: int) -> str:
        """Pays."""
        effects.append(cents)
        return "paid"

    both = wants("order", what="tea")
    both.tool_calls.append({**both.tool_calls[0], "name": "pay", "args": {"cents": 5}, "id": "p"})
    model = Model(said=[both, AIMessage("done")], asked=[])
    store, deaths = CheckpointStore(tmp_path), [KeyboardInterrupt("at the end")]
    config: Any = {"configurable": {"thread_id": "t"}}

    def graph() -> Any:
        return create_agent(
            model, [order, pay], middleware=[RecordedCalls()], checkpointer=InMemorySaver()
        )

    def ended(asked: list[str], state: Any) -> list[Any]:
        if deaths:
            raise deaths.pop()
        return [asked, *[one.content for one in state["messages"]]]

    def with_answer(state: Any, answer: Any, asked: list[str]) -> Any:
        (one,) = state["__interrupt__"]
        asked.append(one.value)
        return Command(resume={one.id: answer})

    def work(run: SyncRun) -> Any:
        made, asked = graph(), list[str]()
        state = made.invoke({"messages": [HumanMessage("go")]}, config)
        while "__interrupt__" in state:
            state = made.invoke(with_answer(state, run.wait_for("yes"), asked), config)
        return ended(asked, state)

    async def awork(run: Run) -> Any:
        made, asked = graph(), list[str]()
        state = await made.ainvoke({"messages": [HumanMessage("go")]}, config)
        while "__interrupt__" in state:
            answer = with_answer(state, await run.wait_for("yes"), asked)
            state = await made.ainvoke(answer, config)
        return ended(asked, state)

    agent: RecoverableAgent[Any] = RecoverableAgent(
        work if plain else awork, store, check_locals=False, park_after_s=0
    )
    for answer in ("a cup", "very"):
        with pytest.raises(WaitingError):
            agent.run_with_recovery_sync("", RUN)
        store.run(RUN).signal("yes", answer)
    with pytest.raises(KeyboardInterrupt):
        agent.run_with_recovery_sync("", RUN)
    asked, *messages = agent.run_with_recovery_sync("", RUN)["result"]
    assert asked == ["tea?", "sure?"]
    assert messages[2:] == ["ordered: ['a cup', 'very']", "paid", "done"]
    assert effects == [5, ["a cup", "very"]], "each took place once"
    assert len(model.asked) == 2
