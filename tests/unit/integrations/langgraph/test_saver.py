"""EventLogSaver against LangGraph's conformance suite, and against an oracle in memory."""

from __future__ import annotations

import asyncio
import copy
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, TypedDict

import numpy
import ormsgpack
import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, RemoveMessage, ToolMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.base import CheckpointTuple, empty_checkpoint
from langgraph.checkpoint.base.id import uuid6
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages

from eventlog import EventLog
from recovery import CheckpointStore
from recovery.integrations.langgraph import EventLogSaver
from recovery.integrations.langgraph.index import EVERY, Index
from recovery.integrations.langgraph.thread import log_name
from recovery.stores import MemoryStore
from tests.support.scale import scaled

CONFIG: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}


@pytest.fixture
def saver(tmp_path: Path) -> Iterator[EventLogSaver]:
    with EventLogSaver(tmp_path / "threads") as made:
        yield made


def reopened(saver: EventLogSaver, tmp_path: Path, **options: Any) -> EventLogSaver:
    saver.close()
    return EventLogSaver(tmp_path / "threads", **options)


def put(saver: Any, values: dict[str, Any], parent: Any = CONFIG, **metadata: Any) -> Any:
    checkpoint = empty_checkpoint()
    checkpoint["id"] = str(uuid6(clock_seq=-1))
    checkpoint["channel_values"] = values
    checkpoint["channel_versions"] = dict.fromkeys(values, "1")
    return saver.put(parent, checkpoint, {"source": "loop", "step": 0, **metadata}, {})


def values(saver: Any, config: Any = CONFIG) -> dict[str, Any]:
    found = saver.get_tuple(config)
    assert found is not None
    return dict(found.checkpoint["channel_values"])


def size_of(place: Path) -> int:
    return sum(path.stat().st_size for path in place.rglob("*") if path.is_file())


# -- LangGraph's own judgement


def test_81_of_81(tmp_path: Path) -> None:
    numbers = iter(range(99))

    @checkpointer_test(name="EventLogSaver")
    async def made() -> Any:
        async with EventLogSaver(tmp_path / str(next(numbers))) as saver:
            yield saver

    report = asyncio.run(validate(made)).to_dict()["results"]
    assert {name: found["failures"] for name, found in report.items() if found["failures"]} == {}
    assert sum(found["tests_passed"] for found in report.values()) >= 81
    assert sum(found["tests_failed"] + found["tests_skipped"] for found in report.values()) == 0


def test_a_version_sorts_after_those_before_also_of_other_savers(saver: EventLogSaver) -> None:
    versions = [InMemorySaver().get_next_version("0000000008.5", None)]  # a thread that was moved
    for _ in range(120):
        versions.append(saver.get_next_version(versions[-1], None))
    assert versions == sorted(versions) and len(set(versions)) == len(versions)
    assert saver.get_next_version(versions[5], None) != versions[6]  # another branch


def test_the_async_form_of_a_method_is_that_of_a_subclass(tmp_path: Path) -> None:
    class Counting(EventLogSaver):
        puts = 0

        def put(self, *args: Any) -> Any:
            self.puts += 1
            return super().put(*args)

    async def put_one(saver: Counting) -> Any:
        checkpoint = {**empty_checkpoint(), "channel_values": {"a": 1}}
        await saver.aput(CONFIG, checkpoint, {"source": "loop"}, {"a": "1"})
        found = await saver.aget_tuple(CONFIG)
        assert found is not None
        return found.checkpoint["channel_values"]

    with Counting(tmp_path / "threads") as saver:
        assert asyncio.run(put_one(saver)) == {"a": 1}
        assert saver.puts == 1
    assert EventLogSaver.aput.__doc__ == "As ``put``."


# -- an oracle: lists are changed at random, and every checkpoint stays what it was


def plain(value: Any) -> Any:
    """For comparison: what pydantic keeps of how a message was made is left out."""
    return JsonPlusSerializer().dumps_typed(value)


class Editing:
    """Values that change as those of agents do: grown, trimmed, reordered, changed in place."""

    def __init__(self, rng: random.Random) -> None:
        self.rng, self.count = rng, 0
        self.messages: list[Any] = []
        self.items: list[Any] = []
        self.last: Any = None
        self.scratch: dict[str, Any] = {"notes": []}

    def new(self, which: str) -> Any:
        self.count += 1
        id = self.rng.choice([None, f"id-{self.count}"])
        text = self.rng.choice(["", "short", "long " * 30]) + str(self.count)
        messages = [
            HumanMessage(text, id=id),
            AIMessage(text, id=id, usage_metadata=None, additional_kwargs={"n": {"k": [1]}}),
            ToolMessage(text, tool_call_id="c", id=id, artifact={1: "one"}),
        ]
        if which == "messages":
            return self.rng.choice(messages)
        return self.rng.choice(
            [
                *messages,
                {"text": text, "deep": [{"x": 1}]},
                text,
                self.count,
                None,
                b"bytes" * self.rng.randrange(20),
                {1: "an int for a key"},
            ]
        )

    def edit(self) -> list[tuple[str, Any]]:
        """Change something; what a task would have written."""
        rng, writes = self.rng, []
        for which in ("messages", "items"):
            now = list(getattr(self, which))
            match rng.randrange(9):
                case 0 | 1 | 2 | 3:
                    news = [self.new(which) for _ in range(rng.randrange(1, 4))]
                    now += news
                    writes.append((which, news if rng.random() < 0.7 else now))
                case 4 if now:
                    del now[rng.randrange(len(now))]
                case 5 if now:
                    now[rng.randrange(len(now))] = self.new(which)
                case 6 if now:
                    self.change(rng.choice(now))
                case 7:
                    rng.shuffle(now)
                case 8:
                    now = now[-3:]
            setattr(self, which, now)
        if rng.random() < 0.3:
            self.last = rng.choice([*self.messages, self.new("last")])
            writes.append(("last", self.last))
        if rng.random() < 0.3:
            self.scratch["notes"].append(self.count)
        return writes

    def change(self, value: Any) -> None:
        if isinstance(value, BaseMessage):
            if self.rng.random() < 0.5:
                value.content = f"changed {self.count}"
            else:
                value.additional_kwargs.setdefault("n", {})["more"] = self.count
        elif isinstance(value, dict) and "deep" in value:
            value["deep"][0]["x"] += 1

    def assign_ids(self) -> None:
        """As add_messages does, after the writes."""
        for value in self.messages:
            if isinstance(value, BaseMessage) and value.id is None:
                value.id = f"drawn-{self.rng.random()}"

    def now(self) -> dict[str, Any]:
        return {
            "messages": self.messages,
            "items": self.items,
            "last": self.last,
            "scratch": self.scratch,
        }


@pytest.mark.parametrize("encrypting", [False, True])
@pytest.mark.parametrize(
    "seed", [0, *[pytest.param(seed, marks=pytest.mark.crash) for seed in range(1, 6)]]
)
def test_every_checkpoint_is_what_it_was_when_it_was_put(
    tmp_path: Path, seed: int, encrypting: bool
) -> None:
    rng = random.Random(seed)
    serde: Any = JsonPlusSerializer(allowed_msgpack_modules=None)
    if encrypting:
        serde = EncryptedSerializer.from_pycryptodome_aes(serde, key=b"0123456789abcdef")
    saver = EventLogSaver(tmp_path / "threads", serde=serde)
    editing, configs = Editing(rng), [CONFIG]
    expected: dict[str, Any] = {}
    pending: dict[str, list[Any]] = {}
    config: Any = CONFIG
    for _ in range(scaled(70, 150)):
        for task in range(rng.randrange(3)):
            writes = editing.edit()
            if writes and "checkpoint_id" in config["configurable"]:
                saver.put_writes(config, writes, f"{len(configs)}-{task}", f"~{task}")
                id = config["configurable"]["checkpoint_id"]
                stored = [(channel, plain(value)) for channel, value in writes]
                pending.setdefault(id, []).extend(stored)
        editing.assign_ids()
        config = put(saver, editing.now(), config)
        expected[config["configurable"]["checkpoint_id"]] = {
            name: plain(value) for name, value in editing.now().items()
        }
        configs.append(config)
        if rng.random() < 0.15:
            saver = reopened(saver, tmp_path, serde=serde)
        if rng.random() < 0.15:
            config = rng.choice(configs[1:])  # a fork, or a resume in a new process
            restored = values(saver, config)
            editing.messages, editing.items = restored["messages"], restored["items"]
            editing.last, editing.scratch = restored["last"], restored["scratch"]
    check_all(saver, expected, pending)
    saver = reopened(saver, tmp_path, serde=serde)
    check_all(saver, expected, pending)
    saver.copy_thread("t", "copy")
    check_all(saver, expected, pending, "copy")
    saver.close()


def check_all(saver: Any, expected: Any, pending: Any, thread_id: str = "t") -> None:
    found = list(saver.list({"configurable": {"thread_id": thread_id}}))
    assert [one.checkpoint["id"] for one in found] == sorted(expected, reverse=True)
    for one in found:
        id = one.checkpoint["id"]
        restored = one.checkpoint["channel_values"]
        assert {name: plain(value) for name, value in restored.items()} == expected[id]
        writes = [(channel, plain(value)) for _, channel, value in one.pending_writes]
        assert sorted(map(str, writes)) == sorted(map(str, pending.get(id, [])))


def test_writes_come_in_the_order_of_their_task_paths(saver: EventLogSaver) -> None:
    config = put(saver, {"a": 1})
    for task, path in (("zz", "~1"), ("aa", "~2"), ("mm", "~0"), ("null", "")):
        saver.put_writes(config, [("a", task), ("b", [task])], task, path)
    saver.put_writes(config, [("a", "a second time")], "zz", "~1")
    saver.put_writes(config, [("__interrupt__", 1)], "aa", "~2")
    saver.put_writes(config, [("__interrupt__", 2)], "aa", "~2")
    found = saver.get_tuple(CONFIG)
    assert found is not None
    assert found.pending_writes == [
        *[("null", "a", "null"), ("null", "b", ["null"]), ("mm", "a", "mm"), ("mm", "b", ["mm"])],
        *[("zz", "a", "zz"), ("zz", "b", ["zz"])],
        *[("aa", "__interrupt__", 2), ("aa", "a", "aa"), ("aa", "b", ["aa"])],
    ]


# -- graphs


class State(TypedDict):
    messages: Annotated[list[Any], add_messages]
    turn: int


def agent(
    turns: int, *, ids: bool = True, change: Callable[[list[Any]], None] | None = None
) -> Any:
    def work(state: State) -> dict[str, Any]:
        turn = state["turn"]
        if change is not None:
            change(state["messages"])
        calls = [{"name": "search", "args": {"q": f"{turn}"}, "id": f"c{turn}"}]
        said = AIMessage("a" * 700, tool_calls=calls, id=f"ai-{turn}" if ids else None)
        found = ToolMessage("b" * 2000, tool_call_id=f"c{turn}", id=f"t-{turn}" if ids else None)
        return {"messages": [said, found], "turn": turn + 1}

    graph = StateGraph(State)
    graph.add_node("work", work)
    graph.add_edge(START, "work")
    graph.add_conditional_edges("work", lambda state: END if state["turn"] >= turns else "work")
    return graph


def run(saver: Any, turns: int, thread_id: str = "t", **options: Any) -> Any:
    graph = agent(turns, **options).compile(checkpointer=saver)
    config = {"configurable": {"thread_id": thread_id}, "recursion_limit": turns + 9}
    return graph.invoke({"messages": [], "turn": 0}, config, durability="sync")


@pytest.mark.parametrize("ids", [True, False])
def test_a_step_adds_what_is_new_however_long_the_thread_is(
    saver: EventLogSaver, tmp_path: Path, ids: bool
) -> None:
    sizes = []
    for turns in (50, 250):
        run(saver, turns, f"t{turns}", ids=ids)
        saver.close()
        sizes.append(size_of(tmp_path / "threads" / log_name(f"t{turns}")))
    per_step = (sizes[1] - sizes[0]) / 200
    assert per_step < 4700, "2.9 KB are new"  # of 2.9 KB text, and what LangGraph says of it


def test_a_message_that_a_node_changes_in_place_is_seen(
    saver: EventLogSaver, tmp_path: Path
) -> None:
    def change(messages: list[Any]) -> None:
        if len(messages) == 6:
            messages[1].content = "changed in place"
            messages[2].tool_calls[0]["args"]["q"] = "changed deep inside"

    result = run(saver, 6, change=change)
    restored = values(reopened(saver, tmp_path))
    assert restored["messages"][1].content == "changed in place"
    assert restored["messages"][2].tool_calls[0]["args"] == {"q": "changed deep inside"}
    assert restored["messages"] == result["messages"]
    ids = [tup.checkpoint["id"] for tup in saver.list(CONFIG)]
    early = values(saver, {"configurable": {**CONFIG["configurable"], "checkpoint_id": ids[-4]}})
    assert early["messages"][1].content == "b" * 2000, "the checkpoints before it stay"
    saver.close()


def renamed(items: list[Any]) -> None:
    args = items[2].tool_calls[0]["args"]
    args["query"] = args.pop("q")


class ChangesMeanwhile(JsonPlusSerializer):
    """The graph changes a message when its bytes are just made, in another thread."""

    change: Callable[[], None] | None = None

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        made = super().dumps_typed(obj)
        change = self.change
        if change is not None and isinstance(obj, HumanMessage):
            self.change = None
            change()
        return made


def test_a_message_that_changes_while_it_is_recorded_is_seen(tmp_path: Path) -> None:
    serde = ChangesMeanwhile(allowed_msgpack_modules=None)
    with EventLogSaver(tmp_path, serde=serde) as saver:
        first, message = put(saver, {}), HumanMessage("hi")
        serde.change = lambda: setattr(message, "id", "m1")
        saver.put_writes(first, [("messages", [message])], "task")
        put(saver, {"messages": [message]}, first)
        saver.close()
        (message,) = values(saver)["messages"]
        assert (message.content, message.id) == ("hi", "m1")


def test_a_message_that_changes_while_it_is_compared_is_seen(tmp_path: Path) -> None:
    serde = ChangesMeanwhile(allowed_msgpack_modules=None)
    with EventLogSaver(tmp_path, serde=serde) as saver:
        first = put(saver, {"messages": [HumanMessage("hi", id="m1")]})
        saver.close()
        (message,) = values(saver)["messages"]
        serde.change = lambda: setattr(message, "content", "hello")
        second = put(saver, {"messages": [message]}, first)
        put(saver, {"messages": [message]}, second)
        assert values(saver, second)["messages"][0].content == "hi"
        assert values(saver)["messages"][0].content == "hello"


@pytest.mark.parametrize(
    "change",
    [
        lambda items: setattr(items[0], "content", "changed"),
        lambda items: items[0].__dict__.update(content="changed"),
        lambda items: setattr(items[0], "note", "a field of the user's"),
        lambda items: items[0].additional_kwargs.update(at_first="empty"),
        lambda items: items[1].additional_kwargs["a"]["b"].append(2),
        lambda items: items[1].additional_kwargs["a"]["b"][0].update(c=3),
        lambda items: items[1].additional_kwargs["a"].update(b=numpy.arange(3)),
        lambda items: items[2].tool_calls.clear(),
        lambda items: items[2].tool_calls[0]["args"].update(q="other"),
        renamed,
        lambda items: items[3].content[1]["image"]["tags"].append("new"),
        lambda items: setattr(items[4], "artifact", numpy.arange(3)),
        lambda items: items[5]["deep"][0].update(x=numpy.arange(3)),
        lambda items: items[5]["deep"].reverse(),
        lambda items: items[6].put(1, 9),
    ],
)
@pytest.mark.parametrize("restored", [False, True])
def test_an_element_changed_in_place_is_seen_at_every_depth(
    saver: EventLogSaver, change: Callable[[list[Any]], None], restored: bool
) -> None:
    items: list[Any] = [
        HumanMessage("text"),
        AIMessage("text", additional_kwargs={"a": {"b": [{"c": 1}]}}),
        AIMessage("", tool_calls=[{"name": "t", "args": {"q": "x"}, "id": "c"}]),
        HumanMessage(["text", {"type": "i", "image": {"tags": ["old"]}}]),
        ToolMessage("text", tool_call_id="c"),
        {"deep": [{"x": 1}, {"x": 2}]},
        numpy.arange(3),
    ]

    def state() -> dict[str, Any]:  # lists of messages alone are compared in another way
        return {"messages": items[:5], "items": list(items)}

    first = put(saver, state())
    before = plain(state())
    if restored:
        items = values(saver)["items"]
        items[6] = items[6].copy()  # which can be written to
    second = put(saver, state(), first)
    change(items)
    put(saver, state(), second)
    assert plain(values(saver)) == plain(state()) != before
    assert plain(values(saver, second)) == before


def test_a_fork_does_not_leak_into_the_other_branch(saver: EventLogSaver, tmp_path: Path) -> None:
    graph = agent(5).compile(checkpointer=saver)
    run(saver, 5)
    history = list(graph.get_state_history(CONFIG))
    past = next(state for state in history if state.values.get("turn") == 2)
    forked = graph.update_state(past.config, {"messages": [HumanMessage("a fork", id="h")]})
    result = graph.invoke(None, forked)
    assert [m.id for m in result["messages"]] == [
        *("ai-0", "t-0", "ai-1", "t-1", "h"),
        *(f"{who}-{turn}" for turn in (2, 3, 4) for who in ("ai", "t")),
    ]
    saver = reopened(saver, tmp_path)
    assert values(saver)["messages"] == result["messages"]
    assert values(saver, history[0].config)["messages"] == history[0].values["messages"]
    saver.close()


def test_a_thread_goes_on_in_a_new_saver(saver: EventLogSaver, tmp_path: Path) -> None:
    run(saver, 3)
    again = reopened(saver, tmp_path)
    graph = agent(6).compile(checkpointer=again)
    result = graph.invoke({"messages": [RemoveMessage(id="t-1")]}, CONFIG)
    assert [m.id for m in result["messages"]][:5] == ["ai-0", "t-0", "ai-1", "ai-2", "t-2"]
    assert result["turn"] == 6
    other = InMemorySaver()
    run(other, 3)
    expected = (
        agent(6).compile(checkpointer=other).invoke({"messages": [RemoveMessage(id="t-1")]}, CONFIG)
    )
    assert result == expected
    again.close()


def test_an_async_graph(tmp_path: Path) -> None:
    async def live() -> Any:
        async with EventLogSaver(tmp_path) as saver:
            graph = agent(4).compile(checkpointer=saver)
            result = await graph.ainvoke({"messages": [], "turn": 0}, CONFIG)
            assert [one async for one in saver.alist(CONFIG, limit=2)]
            return result, await graph.aget_state(CONFIG)

    result, state = asyncio.run(live())
    assert state.values == result and len(result["messages"]) == 8


# -- thread ids


@pytest.mark.parametrize(
    "thread_id",
    [*("", ".", "../../etc/passwd", "a" * 500, "Ünïcode 🦦", "nul\0", "\udc80", "T", "t", "a/b")],
)
def test_any_string_is_a_thread_id(saver: EventLogSaver, tmp_path: Path, thread_id: str) -> None:
    config: Any = {"configurable": {"thread_id": thread_id, "checkpoint_ns": ""}}
    others = [
        put(saver, {"x": 0}, {"configurable": {"thread_id": i, "checkpoint_ns": ""}})
        for i in ("other", "tt")
    ]
    put(saver, {"x": thread_id.encode("utf-8", "surrogatepass")}, config)
    saver = reopened(saver, tmp_path)
    assert values(saver, config) == {"x": thread_id.encode("utf-8", "surrogatepass")}
    assert {path.name for path in tmp_path.iterdir()} == {"threads"}
    assert len(list(saver.list(None))) == 1 + len(others)
    if thread_id != "\udc80":
        assert thread_id in {one.config["configurable"]["thread_id"] for one in saver.list(None)}
    saver.close()


def test_a_number_is_a_thread_id_and_comes_back_as_it_was_given(saver: EventLogSaver) -> None:
    config: Any = {"configurable": {"thread_id": 7, "checkpoint_ns": ""}}
    put(saver, {"x": 1}, config)
    found = saver.get_tuple(config)
    assert found is not None and found.config["configurable"]["thread_id"] == 7


# -- deserialising


def test_nothing_is_imported_or_called_by_name(saver: EventLogSaver, tmp_path: Path) -> None:
    evil = ormsgpack.packb(
        ormsgpack.Ext(0, ormsgpack.packb(("os", "mkdir", str(tmp_path / "made"))))
    )

    class Forging(JsonPlusSerializer):
        def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
            return ("msgpack", evil) if obj == "forged" else super().dumps_typed(obj)

    with EventLogSaver(tmp_path / "threads", serde=Forging()) as forging:
        put(forging, {"x": "forged", "list": ["forged"]})
    assert values(saver) == {"x": str(tmp_path / "made"), "list": [str(tmp_path / "made")]}
    assert not (tmp_path / "made").exists()
    with EventLogSaver(tmp_path / "threads", serde=JsonPlusSerializer()) as careless:
        values(careless)
    assert (tmp_path / "made").exists(), "else the test shows nothing"


def test_an_encrypting_serializer_hides_values_and_bytes_stay_flat(tmp_path: Path) -> None:
    inner = JsonPlusSerializer(allowed_msgpack_modules=None)
    serde = EncryptedSerializer.from_pycryptodome_aes(inner, key=b"0123456789abcdef")
    with EventLogSaver(tmp_path / "threads", serde=serde) as saver:
        run(saver, 30)
        expected = values(saver)
    on_disk = b"".join(p.read_bytes() for p in tmp_path.rglob("*") if p.is_file())
    assert b"aaaaaaaa" not in on_disk and b"search" not in on_disk
    assert len(on_disk) < 30 * 6000
    with EventLogSaver(tmp_path / "threads", serde=serde) as saver:
        assert values(saver) == expected
        assert len(expected["messages"]) == 60


# -- opening


def test_opening_reads_the_tail_and_not_the_history(
    saver: EventLogSaver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config: Any = CONFIG
    for number in range(10 * EVERY):
        config = put(saver, {"n": number}, config)
    saver = reopened(saver, tmp_path)
    applied, taken = 0, 0
    apply, take = Index.apply, Index._take

    def counted(index: Index, record: Any) -> Any:
        nonlocal applied
        applied += 1
        return apply(index, record)

    def counted_snapshots(index: Index, body: Any) -> None:
        nonlocal taken
        taken += 1
        take(index, body)

    monkeypatch.setattr(Index, "apply", counted)
    monkeypatch.setattr(Index, "_take", counted_snapshots)
    assert values(saver) == {"n": 10 * EVERY - 1}
    assert applied <= EVERY + 2 and taken == 1
    assert len(list(saver.list(CONFIG))) == 10 * EVERY, "the rest is found when it is asked for"
    saver.close()


# -- threads of the process


def test_many_threads_write_at_once_and_share_flushes(
    saver: EventLogSaver, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = put(saver, {"a": 1})
    flushes, fdatasync = [], os.fdatasync

    def slow(fd: int) -> None:
        flushes.append(fd)
        time.sleep(0.1)
        fdatasync(fd)

    monkeypatch.setattr(os, "fdatasync", slow)
    barrier = threading.Barrier(16)

    def write(number: int) -> None:
        barrier.wait()
        saver.put_writes(config, [("a", number)], f"task-{number:02}")

    threads = [threading.Thread(target=write, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = saver.get_tuple(CONFIG)
    assert found is not None and found.pending_writes is not None
    assert [value for _, _, value in found.pending_writes] == list(range(16))
    assert 1 <= len(flushes) <= 8


def test_a_saver_is_read_from_many_threads_while_it_is_written(saver: EventLogSaver) -> None:
    over, errors, answers = threading.Event(), [], []
    config = put(saver, {"list": [0]})
    newest = [0]

    def read() -> None:
        try:
            while not over.is_set():
                least = newest[0]
                found = values(saver)["list"]
                assert found == list(range(len(found))) and len(found) > least
                assert len(list(saver.list(CONFIG, limit=3))) >= 1
                answers.append(1)
        except BaseException as exc:
            errors.append(exc)

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for number in range(1, 150):
        config = put(saver, {"list": list(range(number + 1))}, config)
        newest[0] = number
        if number % 40 == 0:
            saver.prune(["t"])
        if number % 30 == 0:
            saver.close()
    over.set()
    for reader in readers:
        reader.join()
    assert not errors and len(answers) > 3


def test_the_clone_with_an_allowlist_shares_the_threads(saver: EventLogSaver) -> None:
    clone = saver.with_allowlist([("tests", "Mine")])
    assert clone is not saver
    config = put(saver, {"x": 1})
    put(clone, {"x": 2}, config)
    assert values(saver) == {"x": 2}


# -- deleting


def test_a_deleted_thread_is_gone_and_may_begin_anew(saver: EventLogSaver, tmp_path: Path) -> None:
    config = put(saver, {"x": 1})
    saver.delete_thread("t")
    assert saver.get_tuple(CONFIG) is None and list((tmp_path / "threads").iterdir()) == []
    with pytest.raises(Exception, match="was deleted or pruned"):
        saver.put_writes(config, [("x", "late")], "task")
    saver.delete_thread("t")
    saver.delete_thread("never there")
    put(saver, {"x": 2})
    assert values(saver) == {"x": 2}


def test_pruning_gives_space_back_and_keeps_state_and_writes(
    saver: EventLogSaver, tmp_path: Path
) -> None:
    result = run(saver, 40)
    other = run(saver, 2, "other")
    config = saver.get_tuple(CONFIG)
    assert config is not None
    saver.put_writes(config.config, [("messages", [HumanMessage("next", id="n")])], "task")
    put(saver, {"big": "x" * 200_000}, {"configurable": {"thread_id": "t", "checkpoint_ns": "s"}})
    put(saver, {"big": "y"}, {"configurable": {"thread_id": "t", "checkpoint_ns": "s"}})
    saver.close()
    before = size_of(tmp_path)
    saver.prune(["t", "never there"])
    for look in (saver, reopened(saver, tmp_path)):
        found = list(look.list(CONFIG))
        assert len(found) == 1
        assert found[0].checkpoint["channel_values"]["messages"] == result["messages"]
        assert found[0].pending_writes == [("task", "messages", [HumanMessage("next", id="n")])]
        assert (
            values(look, {"configurable": {"thread_id": "other"}})["messages"] == other["messages"]
        )
        look.close()
    assert size_of(tmp_path) < before - 200_000 - 20_000
    more = agent(45).compile(checkpointer=saver).invoke({"messages": []}, CONFIG)
    assert more["turn"] == 45 and more["messages"][:80] == result["messages"]


def test_runs_are_deleted_and_later_ones_keep_their_values(
    saver: EventLogSaver, tmp_path: Path
) -> None:
    first = put(saver, {"list": ["a" * 100]}, run_id="one")
    secret = put(saver, {"list": ["a" * 100, "secret " * 20]}, first, run_id="two")
    third = put(saver, {"list": ["a" * 100, "c" * 100]}, secret, run_id="three")
    put(saver, {"x": 1}, {"configurable": {"thread_id": "u", "checkpoint_ns": ""}}, run_id="two")
    saver.delete_for_runs(["two", "none"])
    assert [one.metadata["run_id"] for one in saver.list(CONFIG)] == ["three", "one"]
    assert values(saver, third) == {"list": ["a" * 100, "c" * 100]}
    assert saver.get_tuple({"configurable": {"thread_id": "u"}}) is None
    saver.close()
    assert b"secret" not in b"".join(p.read_bytes() for p in tmp_path.rglob("*") if p.is_file())


def concat(left: list[Any], right: list[Any]) -> list[Any]:
    return left + [item for group in right for item in group]


class Delta(TypedDict):
    items: Annotated[list[Any], DeltaChannel(concat, list, snapshot_frequency=7)]


def delta_graph(saver: Any, steps: int) -> Any:
    graph = StateGraph(Delta)
    graph.add_node("add", lambda state: {"items": [len(state["items"])]})
    graph.add_edge(START, "add")
    graph.add_conditional_edges("add", lambda s: END if len(s["items"]) >= steps else "add")
    return graph.compile(checkpointer=saver)


@pytest.mark.parametrize("steps", [3, 10, 20])
def test_delta_channels_are_rebuilt_also_after_pruning_and_copying(
    saver: EventLogSaver, tmp_path: Path, steps: int
) -> None:
    config: Any = {**CONFIG, "recursion_limit": 99, "metadata": {"run_id": "one"}}
    expected = delta_graph(saver, steps).invoke({"items": []}, config)
    reference = InMemorySaver()
    delta_graph(reference, steps).invoke({"items": []}, config)
    for ours, theirs in zip(saver.list(CONFIG), reference.list(CONFIG), strict=True):
        told = [
            one.get_delta_channel_history(config=at.config, channels=["items"])["items"]
            for one, at in ((saver, ours), (reference, theirs))
        ]
        writes = [[write[1:] for write in one["writes"]] for one in told]
        assert writes[0] == writes[1]
        assert told[0].get("seed") == told[1].get("seed")
    saver.copy_thread("t", "copy")
    saver.prune(["t"])
    saver.prune(["t"])
    saver = reopened(saver, tmp_path)
    for thread_id in ("t", "copy"):
        at: Any = {"configurable": {"thread_id": thread_id}, "recursion_limit": 99}
        graph = delta_graph(saver, steps + 4)
        assert graph.get_state(at).values == expected
        assert graph.invoke({"items": ["x"]}, at)["items"][: steps + 1] == [*range(steps), "x"]
    saver.close()


def test_a_copy_is_whole_and_its_own(saver: EventLogSaver) -> None:
    result = run(saver, 5)
    saver.copy_thread("t", "u")
    saver.copy_thread("never there", "v")
    other: Any = {"configurable": {"thread_id": "u"}}
    assert saver.get_tuple({"configurable": {"thread_id": "v"}}) is None
    with pytest.raises(ValueError, match="has checkpoints"):
        saver.copy_thread("t", "u")
    saver.delete_thread("t")
    assert values(saver, other)["messages"] == result["messages"]
    agent(7).compile(checkpointer=saver).invoke({"messages": []}, other)
    assert values(saver, other)["turn"] == 7


def test_a_store_in_memory_will_do() -> None:
    with EventLogSaver(MemoryStore()) as saver:
        run(saver, 4)
        saver.prune(["t"])
        assert values(saver)["turn"] == 4


def test_the_log_shows_what_happened(saver: EventLogSaver, tmp_path: Path) -> None:
    run(saver, 2)
    saver.close()
    with EventLog.read(tmp_path / "threads" / log_name("t")) as reader:
        kinds = [record.kind for record in reader.records()]
    assert kinds[0] == "langgraph.thread"
    assert {*kinds} == {"langgraph.thread", "langgraph.writes", "langgraph.checkpoint"}


def test_commands_know_that_a_thread_is_no_run_and_remove_old_ones(
    saver: EventLogSaver, tmp_path: Path
) -> None:
    store = CheckpointStore(tmp_path / "threads")
    for turns in (2, 80):  # of these, the second has a snapshot
        run(saver, turns)
        saver.close()
        (thread,) = store.runs()
        assert (thread.state, thread.kind) == ("saved", "checkpoints")
        assert "langgraph.checkpoint" in thread.why
        assert time.time() - thread.last < 600
        assert store.gc(keep=0, states=["finished", "failed"]) == []
        assert store.gc(older_than_s=600, states=["saved"]) == []
        assert values(saver)["turn"] == turns
        (removed,) = store.gc(older_than_s=0, states=["saved"])
        assert removed.run_id == log_name("t")
        assert saver.get_tuple(CONFIG) is None


def test_what_is_returned_is_nobody_elses(saver: EventLogSaver) -> None:
    put(saver, {"list": [{"deep": [1]}]})
    values(saver)["list"][0]["deep"].append(2)
    assert values(saver) == {"list": [{"deep": [1]}]}
    given = {"list": [{"deep": [1]}]}
    config = put(saver, given)
    kept: CheckpointTuple | None = copy.deepcopy(saver.get_tuple(config))
    given["list"][0]["deep"].append(3)
    found = saver.get_tuple(config)
    assert kept is not None and found is not None and found.checkpoint == kept.checkpoint
