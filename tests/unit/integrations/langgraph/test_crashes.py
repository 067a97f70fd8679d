"""A thread whose process is killed, whose disk lies, and that several processes want."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, TypedDict
from unittest.mock import Mock

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.config import get_stream_writer
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, Send, interrupt

from eventlog import DamagedError, LogLockedError
from eventlog.format.footer import read_footer
from eventlog.testing import Crash, SimulatedDisk
from recovery.integrations.langgraph import (
    EventLogSaver,
    ThreadMovedError,
    abegin_or_resume,
    begin_or_resume,
    thread,
    threads,
)
from recovery.integrations.langgraph import saver as saver_module
from recovery.integrations.langgraph.thread import log_name
from recovery.stores.log_store import LogStore
from tests.support.framework_lives import kills
from tests.support.kill_sweep import sweep
from tests.support.paths import ROOT
from tests.unit.integrations.langgraph.test_saver import CONFIG, put, run, values

# -- SIGKILL before and after every append
#
# Compared are all messages, each request as the model got it, the words that it streamed, and the
# effects outside. Left out: the ids of messages, which LangGraph draws. With the saver alone a task
# that was cut short runs again, so that its effect may be made twice; one whose writes are recorded
# does not. `test_tools.py` has the same with `RecordedTools`, and effects in doubt.


class State(TypedDict):
    messages: Annotated[list[Any], add_messages]


TURNS = [
    [("weather", "Oslo"), ("weather", "nowhere")],  # at once; one wants another city
    [("weather", "Rome")],
    [("mail", "both")],  # asks a person
]


class AsksError(Exception):
    """The thread waits for a person."""


def shown(messages: list[Any]) -> list[Any]:
    return [(m.type, m.content, getattr(m, "tool_calls", None)) for m in messages]


def recorded(saver: EventLogSaver) -> list[str]:
    """The texts of all messages that the thread has, with the writes that no checkpoint has yet."""
    found = saver.get_tuple(CONFIG)
    assert found is not None
    texts = [one.content for one in found.checkpoint["channel_values"].get("messages", ())]
    for _, channel, value in found.pending_writes or ():
        texts += [one.content for one in value] if channel == "messages" else []
    return texts


def graph_of(saver: EventLogSaver, turns: Any = TURNS, place: Path | None = None) -> Any:
    """``place``: where effects and requests are written down."""

    def note(file: str, what: Any) -> None:
        if place is not None:
            with (place / file).open("a") as out:
                out.write(f"{what}\n")

    def model(state: State) -> dict[str, Any]:
        asked = sum(isinstance(message, AIMessage) for message in state["messages"])
        answer = f"answer {asked}"
        assert answer not in recorded(saver), f"{answer} is asked for again"
        note("requests", shown(state["messages"]))
        for word in answer.split():
            get_stream_writer()(f"{asked}: {word}")
        wanted = turns[asked] if asked < len(turns) else []
        calls = [{"name": n, "args": {"about": a}, "id": f"{n}-{a}"} for n, a in wanted]
        # Without an id of its own, as many models answer: LangGraph draws one.
        return {"messages": [AIMessage(answer, tool_calls=calls)]}

    def tool(state: dict[str, Any]) -> dict[str, Any]:
        call = state["call"]
        name, about = call["name"], call["args"]["about"]
        said = interrupt("send it?") if name == "mail" else ""
        answer = f"{name} of {about}{said}"
        assert answer not in recorded(saver), f"{answer} is made again"
        if about == "nowhere":
            message = ToolMessage(f"{answer}: try another", tool_call_id=call["id"], status="error")
        else:
            note("effects made", answer)
            message = ToolMessage(answer, tool_call_id=call["id"])
        return {"messages": [message]}

    def route(state: State) -> Any:
        calls = state["messages"][-1].tool_calls
        return [Send("tool", {"call": call}) for call in calls] or END

    graph: Any = StateGraph(State)
    graph.add_node("model", model)
    graph.add_node("tool", tool)
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", route, ["tool", END])
    graph.add_edge("tool", "model")
    return graph.compile(checkpointer=saver)


QUESTION: Any = {"messages": [HumanMessage("What is the weather?", id="q")]}


def invoked(graph: Any, place: Path) -> Any:
    result = begin_or_resume(graph, QUESTION, CONFIG)
    if "__interrupt__" in result:
        result = graph.invoke(answered(place), CONFIG, durability="sync")
    return result["messages"]


def streamed(graph: Any, place: Path) -> Any:
    """The words that came before a kill may be lost with the process: their node has ended."""
    begun, words, state = graph.checkpointer.get_tuple(CONFIG) is not None, set[str](), {}

    def read(given: Any) -> None:
        nonlocal state
        for mode, chunk in graph.stream(
            given, CONFIG, stream_mode=["custom", "values"], durability="sync"
        ):
            if mode == "custom":
                words.add(chunk)
            else:
                state = chunk

    read(None if begun else QUESTION)
    if "__interrupt__" in state:
        read(answered(place))
    assert words <= {f"{n}: {word}" for n in range(len(TURNS) + 1) for word in ("answer", str(n))}
    assert begun or {"0: answer", "0: 0"} <= words
    return state["messages"]


def answered(place: Path) -> Command[Any]:
    if not (place / "yes").exists():
        raise AsksError
    return Command(resume=(place / "yes").read_text())


def says_yes(place: Path, how: str) -> None:
    assert how == "AsksError", how
    (place / "yes").write_text(", as you say")


@kills(3)
@pytest.mark.parametrize("ask", [invoked, streamed])
def test_a_graph_with_parallel_tools_survives_a_kill_at_every_append(
    ask: Callable[[Any, Path], Any], points: int, tmp_path: Path, rng: random.Random
) -> None:
    def live(place: Path) -> Any:
        """Begins the thread, or resumes it."""
        with EventLogSaver(place / "threads") as saver:
            messages = ask(graph_of(saver, place=place), place)
            assert values(saver)["messages"] == messages
        files = [place / one for one in ("requests", "effects made")]
        lines = [sorted({*one.read_text().splitlines()}) for one in files if one.exists()]
        return [shown(messages), *lines]

    found = sweep(live, tmp_path, rng, points=points, settle=says_yes)
    assert found.bad == []
    assert found.appends >= 18 and found.points == min(points, 2 * found.appends)


def test_an_empty_next_does_not_mean_that_a_thread_has_finished(tmp_path: Path) -> None:
    """The writes of the last task are recorded, and the checkpoint after them is not."""
    with EventLogSaver(tmp_path) as saver:
        graph = graph_of(saver, TURNS[:2])
        for _ in graph.stream(QUESTION, CONFIG, stream_mode="updates", durability="sync"):
            break  # left after the model's first answer
        unfinished = graph.get_state(CONFIG)
        assert len(unfinished.values["messages"]) < 6
        result = begin_or_resume(graph, QUESTION, CONFIG)
        assert [m.type for m in result["messages"]] == [
            "human",
            "ai",
            "tool",
            "tool",
            "ai",
            "tool",
            "ai",
        ]
        assert begin_or_resume(graph, QUESTION, CONFIG) == result, "and it is done"


def test_several_inputs_of_a_thread_each_once(tmp_path: Path) -> None:
    def answer(state: State) -> dict[str, Any]:
        return {"messages": [AIMessage(f"to {state['messages'][-1].content}")]}

    def graph_with(saver: EventLogSaver) -> Any:
        graph = StateGraph(State)
        graph.add_node("answer", answer)
        graph.add_edge(START, "answer")
        return graph.compile(checkpointer=saver)

    async def later(saver: EventLogSaver) -> Any:
        said = {"messages": [HumanMessage("third")]}
        await abegin_or_resume(graph_with(saver), said, CONFIG, key="3")
        return await abegin_or_resume(graph_with(saver), said, CONFIG, key="3")

    for _ in range(2):  # as by a queue that delivers each twice
        for key in ("first", "second"):
            with EventLogSaver(tmp_path) as saver:
                said = {"messages": [HumanMessage(key)]}
                result = begin_or_resume(graph_with(saver), said, CONFIG, key=key)
    assert [m.content for m in result["messages"]] == ["first", "to first", "second", "to second"]
    with EventLogSaver(tmp_path) as saver:
        assert len(asyncio.run(later(saver))["messages"]) == 6
    with pytest.raises(TypeError, match="no checkpointer"):
        begin_or_resume(graph_with(None), {}, CONFIG)  # type: ignore[arg-type]


# -- deleting, pruning and copying, on a disk that dies at any call


def simulated(disk: SimulatedDisk) -> EventLogSaver:
    return EventLogSaver(LogStore("home", disk, "power"), release_after_s=60)


def small_thread(saver: Any) -> Any:
    config: Any = CONFIG
    for number in range(4):
        config = put(saver, {"list": [f"{n} " * 30 for n in range(number + 1)]}, config)
        saver.put_writes(config, [("list", [f"{number + 1} " * 30])], "task")
    return config


def told(saver: EventLogSaver, thread_id: str = "t") -> Any:
    found = saver.list({"configurable": {"thread_id": thread_id}})
    return [(one.checkpoint, one.pending_writes) for one in found]


OPERATIONS: dict[str, Callable[[EventLogSaver], None]] = {
    "delete": lambda saver: saver.delete_thread("t"),
    "prune": lambda saver: saver.prune(["t"]),
    "copy": lambda saver: saver.copy_thread("t", "u"),
    "write": lambda saver: put(saver, {"list": ["new"]}),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_crash_at_any_call_leaves_all_or_nothing(name: str) -> None:
    operation, calls, states = OPERATIONS[name], 0, set()
    first = SimulatedDisk()
    with simulated(first) as saver:
        small_thread(saver)
        before = told(saver)
    ended = False
    while not ended:
        disk = first.after_process_death()
        saver = simulated(disk)
        disk.crash_at(calls)
        try:
            operation(saver)
            ended = True
            disk.crash_at(1 << 30)
            saver.close()
        except Crash:
            for one, _ in saver._threads._open.values():
                with suppress(Crash):
                    one.close()
            saver._threads._open.clear()  # nothing of a dead process is closed later
        afters = [disk.after_process_death(), *(disk.after_power_loss(n) for n in range(3))]
        for after in afters:
            with simulated(after) as again:
                found, copied = told(again), told(again, "u")
                if name == "write":
                    assert found[-len(before) :] == before and len(found) - len(before) in (0, 1)
                else:
                    assert found in (before, [] if name == "delete" else before[:1])
                assert copied in ([], before)
                states.add((len(found), len(copied)))
                operation(again) if name != "copy" or not copied else None
                put(again, {"list": ["goes on"]})
                assert told(again)[0][0]["channel_values"] == {"list": ["goes on"]}
        calls += 1
    assert calls > 5 and len(states) == 2, "both ends were seen"


# -- damage


def test_one_flipped_bit_is_found_or_changes_nothing(tmp_path: Path, rng: random.Random) -> None:
    with EventLogSaver(tmp_path) as saver:
        run(saver, 60)
        expected = saver.get_tuple(CONFIG)
    (segment,) = (tmp_path / log_name("t")).glob("*.seg")
    sound = segment.read_bytes()
    footer = read_footer(sound, sound[56:60])  # an index, which is made again
    assert footer is not None
    found, size = 0, footer.offset
    regions = 40
    for region in range(regions):
        data = bytearray(sound)
        low, high = size * region // regions, size * (region + 1) // regions
        data[rng.randrange(low, high)] ^= 1 << rng.randrange(8)
        segment.write_bytes(data)
        with EventLogSaver(tmp_path) as saver:
            try:
                assert saver.get_tuple(CONFIG) == expected
            except DamagedError:
                found += 1
            with pytest.raises(DamagedError):
                put(saver, {"x": 1}, expected.config if expected else CONFIG)
                list(saver.list(CONFIG))
    assert found > regions // 2
    segment.write_bytes(sound)
    with EventLogSaver(tmp_path) as saver:
        assert saver.get_tuple(CONFIG) == expected


# -- two processes

OTHER = """
import sys, time
from recovery.integrations.langgraph import EventLogSaver
from tests.unit.integrations.langgraph.test_saver import CONFIG, put, values
saver = EventLogSaver(sys.argv[1], release_after_s=float(sys.argv[2]))
found = saver.get_tuple(CONFIG)
put(saver, {"by": "other"}, found.config if found else CONFIG)
print("written", flush=True)
for line in sys.stdin:
    found = saver.get_tuple(CONFIG)
    put(saver, {"by": line.strip()}, found.config)
    print("written", flush=True)
"""


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Callable[[float], Any]]:
    made: list[Any] = []

    def begin(release_after_s: float) -> Any:
        made.append(
            subprocess.Popen(
                [sys.executable, "-c", OTHER, str(tmp_path), str(release_after_s)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                cwd=ROOT,
            )
        )
        assert made[-1].stdout.readline() == "written\n"
        return made[-1]

    yield begin
    for process in made:
        process.kill()
        process.communicate()


def test_a_second_writer_is_refused_and_a_reader_beside_it_served(
    tmp_path: Path, other: Callable[[float], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(thread, "LOCK_WAIT_S", 0.2)
    process = other(3600)
    with EventLogSaver(tmp_path) as saver:
        assert values(saver) == {"by": "other"}
        with pytest.raises(LogLockedError, match=f"held by process {process.pid}"):
            put(saver, {"by": "me"}, saver.get_tuple(CONFIG).config)  # type: ignore[union-attr]
        with pytest.raises(LogLockedError):
            saver.delete_thread("t")
        print("again", file=process.stdin, flush=True)
        assert process.stdout.readline() == "written\n"
        assert values(saver) == {"by": "again"}, "the reader sees what was added"
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        put(saver, {"by": "me"}, saver.get_tuple(CONFIG).config)  # type: ignore[union-attr]
        assert values(saver) == {"by": "me"}


def test_an_idle_worker_lets_go_and_another_goes_on_and_a_stale_one_is_refused(
    tmp_path: Path, other: Callable[[float], Any]
) -> None:
    process = other(0.2)
    with EventLogSaver(tmp_path, release_after_s=0.2) as saver:
        mine = put(saver, {"by": "me"}, saver.get_tuple(CONFIG).config)  # type: ignore[union-attr]
        print("meanwhile", file=process.stdin, flush=True)  # waits until this one lets go
        assert process.stdout.readline() == "written\n"
        with pytest.raises(ThreadMovedError, match="another process has continued it"):
            put(saver, {"by": "stale"}, mine)
        with pytest.raises(ThreadMovedError, match="another process has continued it"):
            saver.put_writes(mine, [("by", "stale")], "task")
        newest = saver.get_tuple(CONFIG)
        assert newest is not None and newest.checkpoint["channel_values"] == {"by": "meanwhile"}
        put(saver, {"by": "me again"}, newest.config)
        assert values(saver) == {"by": "me again"}


@pytest.mark.parametrize("every", [64, 1], ids=["records", "snapshots"])
@pytest.mark.parametrize("how", ["idle", "one of many", "closed"])
def test_a_stale_writer_is_refused_also_when_its_thread_was_closed_meanwhile(
    how: str, every: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node may work for hours between two checkpoints."""
    monkeypatch.setattr(saver_module, "EVERY", every)  # at the end of the log is a snapshot
    with EventLogSaver(tmp_path, threads_open_max=1) as saver, EventLogSaver(tmp_path) as other:

        def closes() -> None:
            if how == "idle":
                saver._threads.release_idle(time.monotonic() + 3600)
            elif how == "one of many":
                put(saver, {"x": 1}, {"configurable": {"thread_id": "another"}})
            else:
                saver.close()

        first = put(saver, {"by": "me"}, CONFIG)
        mine = put(saver, {"by": "me again"}, first)
        closes()
        saver.put_writes(first, [("by", "me, late")], "task")  # what is its own is not foreign
        closes()
        put(other, {"by": "other"}, other.get_tuple(CONFIG).config)  # type: ignore[union-attr]
        other.close()
        with pytest.raises(ThreadMovedError, match="another process has continued it"):
            put(saver, {"by": "stale"}, mine)
        assert values(saver) == {"by": "other"}


def test_files_that_are_open_are_few(tmp_path: Path) -> None:
    def descriptors() -> int:
        return len([*Path("/proc/self/fd").iterdir()])

    before = descriptors()
    with EventLogSaver(tmp_path, threads_open_max=5, release_after_s=60) as saver:
        for number in range(60):
            put(saver, {"x": number}, {"configurable": {"thread_id": str(number)}})
            values(saver, {"configurable": {"thread_id": str(number // 2)}})
        assert descriptors() - before <= 5 * 5
        assert len(list(saver.list(None))) == 60
        assert descriptors() - before <= 5 * 5
    assert descriptors() == before


@pytest.mark.parametrize("is_refused", [False, True])
def test_a_thread_that_is_not_written_is_let_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_refused: bool
) -> None:
    """Also if at first no thread of the process could be started that does it."""
    monkeypatch.setattr(thread, "LOCK_WAIT_S", 60.0)
    with (
        EventLogSaver(tmp_path, release_after_s=0.05) as saver,
        EventLogSaver(tmp_path) as second,
    ):
        if is_refused:
            made = Mock(start=Mock(side_effect=RuntimeError("can't start new thread")))
            with pytest.MonkeyPatch.context() as patched, pytest.raises(RuntimeError, match="new"):
                patched.setattr(threads, "threading", Mock(Thread=Mock(return_value=made)))
                put(saver, {"x": 1})
        put(saver, {"x": 1})
        put(second, {"x": 2}, second.get_tuple(CONFIG).config)  # type: ignore[union-attr]
