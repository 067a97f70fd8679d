"""Hive's AgentLoop with recorded tools and a recorded conversation."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from recovery import CheckpointStore, InDoubtError, RecoverableAgent, RecoveryError, Resolution
from recovery.call_journal import journal_execution
from recovery.control.resolve import resolve
from recovery.errors import DamagedRunError
from recovery.inspect.status import status
from recovery.integrations.hive import (
    DamagedConversationError,
    RecordedLoop,
    current_call,
    default_store,
)
from recovery.journal.events import CallIntended, CallReturned
from tests.support.hive.loop import (
    AgentContext,
    AgentLoop,
    FileConversationStore,
    NodeConversation,
    ToolResult,
    ToolUse,
)
from tests.support.lives import RUN, Died, Disk, after_death, disk_store, recorded


class LLM:
    """Asks for items in batches, again for each of which it was shown an error."""

    def __init__(self, world: Any) -> None:
        self.world = world  # its items, how many at once, and new ids
        self.seen: list[dict[str, Any]] = []

    def answer(self, messages: list[dict[str, Any]]) -> tuple[str, list[ToolUse]]:
        self.seen = messages
        asked: dict[str, int] = {}
        done: set[int] = set()
        for message in messages:
            for one in message.get("tool_calls", []):
                asked[one["id"]] = json.loads(one["function"]["arguments"])["item"]
            if message["role"] == "tool" and not message["content"].startswith("ERROR"):
                done.add(asked[message["tool_call_id"]])
        left = [item for item in range(self.world.items) if item not in done][: self.world.batch]
        uses = [
            ToolUse(self.world.new_id(at), "send", {"item": item}) for at, item in enumerate(left)
        ]
        return ("all done" if not left else "next"), uses


class World:
    """What tools have done, in all processes, and what the next process finds."""

    def __init__(self, tmp_path: Path, items: int = 12, batch: int = 12, **config: Any) -> None:
        self.items, self.batch, self.config = items, batch, config
        self.files = tmp_path / "conversations"
        self.store: CheckpointStore = disk_store()
        self.made: Counter[int] = Counter()
        self.keys: dict[int, set[str]] = {}
        self.ids = count()
        self.recycled = False
        self.dies_at, self.dies_behind = -1, False
        self.others: Callable[[], bool] = lambda: True  # whether all others have their results
        self.llm = LLM(self)
        self.policy: Any = "park"
        self.inject: list[str] = []
        self.opened: list[str] = []
        self.options: dict[str, Any] = {}
        self.loop = AgentLoop()

    def new_id(self, at: int) -> str:
        return f"call_{at}" if self.recycled else f"toolu_{next(self.ids)}"

    def send(self, use: ToolUse) -> Any:
        item = use.input["item"]
        call = current_call()
        assert call is not None
        if item == self.dies_at:
            until = time.monotonic() + 10
            while not self.others():
                assert time.monotonic() < until
                time.sleep(0.002)
            if self.dies_behind:
                self.made[item] += 1
            raise Died
        self.made[item] += 1
        self.keys.setdefault(item, set()).add(call.idempotency_key)
        return ToolResult(use.id, f"sent {item}")

    @contextmanager
    def opens(self, executor: Any = None) -> Iterator[RecordedLoop]:
        files = FileConversationStore(self.files)
        with RecordedLoop(
            RUN,
            executor or self.send,
            files,
            self.store,
            after_crash=self.policy,
            **self.options,
        ) as session:
            yield session

    def live(self, executor: Any = None, run_id: str = "run-1") -> str:
        with self.opens(executor) as session:
            self.loop = AgentLoop(
                None, None, self.config, session.tool_executor, session.conversation_store
            )
            self.loop.inject = self.inject
            try:
                asyncio.run(self.loop.execute(AgentContext(self.llm, run_id)))
                return self.loop.said
            finally:
                self.opened = session.conversation_store.opened

    def die(self, at: int, *, behind: bool = False, executor: Any = None) -> None:
        """Run until the tool for an item dies, when all others of its batch have their results."""
        self.dies_at, self.dies_behind = at, behind
        others = len(
            range(at - at % self.batch, min(self.items, at - at % self.batch + self.batch))
        )
        with self.opens(executor) as session:
            self.others = lambda: len(session.journal.finished()) >= others - 1
            loop = AgentLoop(
                None, None, self.config, session.tool_executor, session.conversation_store
            )
            loop.inject = list(self.inject)
            with pytest.raises(Died):
                asyncio.run(loop.execute(AgentContext(self.llm)))
            self.store = after_death(self.store)
        self.dies_at = -1

    def doubtful(self) -> list[Any]:
        with pytest.raises(InDoubtError) as told, self.opens():
            pass
        return list(told.value.calls)

    def resolve(self, resolution: Resolution) -> None:
        for call in self.doubtful():
            resolve(self.store, RUN, call.lsn, resolution)


def tool_messages(world: World) -> dict[str, str]:
    return {one["tool_call_id"]: one["content"] for one in world.llm.seen if one["role"] == "tool"}


@pytest.mark.parametrize(("batch", "at"), [(12, 11), (4, 7), (1, 5)])
def test_a_batch_killed_in_its_last_tool_has_one_call_in_doubt_and_repeats_none(
    tmp_path, batch, at
):
    world = World(tmp_path, 12, batch)
    world.die(at, behind=True)
    assert [(call.tool, call.kwargs) for call in world.doubtful()] == [("send", {"item": at})]
    assert status(world.store, RUN).state == "in doubt"
    world.resolve(Resolution.outcome({"content": f"sent {at}, as the mailbox says"}))
    assert world.live() == "all done"
    assert world.made == Counter(range(12))
    assert f"sent {at}, as the mailbox says" in tool_messages(world).values()


def test_hive_alone_repeats_eleven(tmp_path):
    """The double loses what Hive loses: else the tests above would say nothing."""
    world = World(tmp_path)
    world.die(11)
    store = FileConversationStore(world.files)

    def plain(use: ToolUse) -> ToolResult:
        world.made[use.input["item"]] += 1
        return ToolResult(use.id, "sent")

    asyncio.run(
        AgentLoop(tool_executor=plain, conversation_store=store).execute(AgentContext(world.llm))
    )
    assert [world.made[item] for item in range(12)] == [2] * 11 + [1]


def test_a_policy_per_tool_settles_a_call_without_a_person(tmp_path):
    for name, policy, made, told in (
        ("retry", "retry", 2, "sent 3"),
        ("found", lambda call: Resolution.outcome(f"found {call.kwargs}"), 1, "found {'item': 3}"),
        ("not", _has_not_happened, 2, "sent 3"),
    ):
        world = World(tmp_path / name, 4, 4)
        world.die(3, behind=True)
        world.policy = {"send": policy}
        assert world.live() == "all done"
        assert [world.made[item] for item in range(4)] == [1, 1, 1, made], name
        assert told in tool_messages(world).values()
        assert len(recorded(world.store, CallIntended)) == 4, name


async def _has_not_happened(call: Any) -> Resolution:
    await asyncio.sleep(0)
    return Resolution.retry()


def test_a_call_made_again_has_the_key_that_it_had(tmp_path):
    world = World(tmp_path, 1, 1)
    keys = []

    def sends(use: ToolUse) -> Any:
        call = current_call()
        assert call is not None
        keys.append((call.idempotency_key, call.attempt))
        return world.send(use)

    world.die(0, executor=sends)
    world.policy = "retry"
    world.live(sends)
    assert keys[0][0] == keys[1][0]
    assert [attempt for _, attempt in keys] == [1, 2]


def test_what_cannot_be_found_out_stops_for_a_person_before_anything_is_made_again(tmp_path):
    world = World(tmp_path, 2, 2)
    world.die(1, behind=True)

    def fails(call: Any) -> Resolution:
        raise ConnectionError("no network")

    for policy in (fails, lambda call: "yes"):
        world.policy = policy
        with pytest.raises(InDoubtError):
            world.live()
    assert world.made == {0: 1, 1: 1}
    world.policy = "park"
    world.resolve(Resolution.fail("it bounced"))
    world.items = 1
    world.live()
    assert "ERROR: resolved as failed: it bounced" in tool_messages(world).values()


def test_the_model_is_told_that_a_call_may_have_taken_effect(tmp_path):
    world = World(tmp_path, 2, 2)
    world.die(1, behind=True)
    world.policy, world.items = "report", 1
    world.live()
    (told,) = [said for said in tool_messages(world).values() if said.startswith("ERROR")]
    assert "may or may not have taken effect" in told
    with world.opens():  # and nothing is in doubt any more
        pass


def test_tools_that_start_while_the_model_speaks_are_not_repeated(tmp_path):
    world = World(tmp_path, 4, 4, early=True)
    world.die(3, behind=True)
    world.resolve(Resolution.outcome("sent 3"))
    assert world.live() == "all done"
    assert world.made == Counter(range(4))


def test_what_a_user_said_before_the_tools_ran_does_not_hide_their_results(tmp_path):
    world = World(tmp_path, 4, 4)
    world.inject = ["hurry", "up"]
    world.die(3, behind=True)
    world.inject = []
    world.resolve(Resolution.outcome("sent 3"))
    assert world.live() == "all done"
    assert world.made == Counter(range(4))
    parts = asyncio.run(FileConversationStore(world.files).read_parts())
    assert [part["seq"] for part in parts] == list(range(len(parts)))
    assert [part["role"] for part in parts] == [
        "user",
        "assistant",
        *["tool"] * 4,
        "user",
        "user",
        "assistant",
    ]


def test_ids_that_a_provider_uses_again_do_not_bring_back_old_results(tmp_path):
    world = World(tmp_path, 8, 4)
    world.recycled = True
    world.die(7, behind=True)
    world.resolve(Resolution.outcome("sent 7"))
    assert world.live() == "all done"
    assert world.made == Counter(range(8))
    parts = asyncio.run(FileConversationStore(world.files).read_parts())
    assert [part["content"] for part in parts if part["role"] == "tool"] == [
        f"sent {item}" for item in range(8)
    ]


def test_a_call_that_had_not_begun_is_left_to_the_model(tmp_path):
    world = World(tmp_path, 3, 3)
    with world.opens() as session:  # the first two of three, and the process dies
        loop = AgentLoop(
            tool_executor=session.tool_executor, conversation_store=session.conversation_store
        )

        def dies(use: ToolUse) -> Any:
            if use.input["item"] == 2:
                raise Died
            return session.tool_executor(use)

        loop._tool_executor = dies
        with pytest.raises(Died):
            asyncio.run(loop.execute(AgentContext(world.llm)))
        world.store = after_death(world.store)
    world.live()
    assert world.made == Counter(range(3))


def test_results_come_back_with_type_and_fields_and_once(tmp_path):
    world, results = World(tmp_path), []

    class Executor:
        probe_for_tool = "probe"

        def __call__(self, use: ToolUse) -> ToolResult:
            results.append(use.id)
            return ToolResult(
                use.id,
                "text",
                image_content=[{"type": "image", "data": "x" * 99}],
                is_skill_content=True,
                spillover_path="/data/a.txt",
            )

    with world.opens(Executor()) as session:
        tools = session.tool_executor
        assert tools.probe_for_tool == "probe"  # type: ignore[attr-defined]
        assert not hasattr(tools, "kill_for_tool")
        first = tools(ToolUse("id", "look", {"a": 1}))
        world.store = after_death(world.store)
    with world.opens(Executor()) as session:
        again = session.tool_executor(ToolUse("id", "look", {"a": 1}))
        assert (type(again), again) == (ToolResult, first)
        session.tool_executor(ToolUse("id", "look", {"a": 2}))  # another call
    assert results == ["id", "id"]


def test_intents_are_durable_before_the_tool_and_results_before_the_loop_has_them(
    tmp_path,
):
    world = World(tmp_path)

    def durable() -> list[Any]:
        assert isinstance(world.store.backend, Disk)
        kept = CheckpointStore(Disk(world.store.backend.disk.after_power_loss(1)))
        return recorded(kept, CallIntended, CallReturned)

    def executor(use: ToolUse) -> ToolResult:
        (intent,) = durable()
        assert intent.tool == use.name
        return ToolResult(use.id, "done")

    async def awaited(use: ToolUse) -> ToolResult:
        return ToolResult(use.id, "awaited")

    with world.opens(executor) as session:
        session.tool_executor(ToolUse("a", "look", {}))
        assert durable()[-1].value["content"] == "done"
    with world.opens(awaited) as session:
        asyncio.run(session.tool_executor(ToolUse("b", "look", {})))
        assert durable()[-1].value["content"] == "awaited"


def test_a_damaged_record_is_refused_and_hives_files_stay(tmp_path):
    world = finished(tmp_path)
    assert isinstance(world.store.backend, Disk)
    disk = world.store.backend.disk
    directory = disk.open_directory(f"home/{RUN}")
    name = next(name for name in sorted(directory.names()) if name not in ("LOCK", "MARK"))
    file = directory.open(name, write=True)
    file.pwrite(b"\0" * 64, file.size() // 2)
    kept = sorted(path.name for path in world.files.rglob("*.json"))
    with pytest.raises(DamagedRunError):
        world.live()
    assert sorted(path.name for path in world.files.rglob("*.json")) == kept
    assert world.made == Counter(range(4))


def test_a_run_of_another_kind_is_refused(tmp_path):
    world = World(tmp_path)
    with pytest.raises(ZeroDivisionError):
        asyncio.run(
            RecoverableAgent(_fails, world.store, max_recoveries=0).run_with_recovery("task", RUN)
        )
    with pytest.raises(RecoveryError, match="no journal of calls"), world.opens():
        pass
    asyncio.run(RecoverableAgent(_nothing, world.store).run_with_recovery("task", RUN))
    with pytest.raises(RecoveryError, match="no journal of calls"), world.opens():
        pass


async def _fails(run: Any) -> None:
    raise ZeroDivisionError


async def _nothing(run: Any) -> None:
    return None


def test_awaitables_are_awaited_where_the_loop_awaits_them(tmp_path):
    world = World(tmp_path, 6, 3)
    threads: set[Any] = set()

    def executor(use: ToolUse) -> Any:
        threads.add(threading.current_thread())

        async def awaited() -> Any:
            assert threading.current_thread() is threading.main_thread()
            await asyncio.sleep(0)
            while use.input["item"] == world.dies_at and not world.others():  # noqa: ASYNC110
                await asyncio.sleep(0.002)
            return world.send(use)

        return awaited()

    world.die(4, behind=True, executor=executor)
    assert threading.main_thread() not in threads
    world.resolve(Resolution.outcome("sent 4"))
    assert world.live(executor) == "all done"
    assert world.made == Counter(range(6))


def test_a_cancelled_call_is_told_to_be_unknown(tmp_path):
    world, begun = World(tmp_path, 1, 1), asyncio.Event()

    async def hangs(use: ToolUse) -> Any:
        begun.set()
        await asyncio.Event().wait()

    with world.opens(hangs) as session:
        loop = AgentLoop(
            tool_executor=session.tool_executor, conversation_store=session.conversation_store
        )

        async def main() -> None:
            task = asyncio.create_task(loop.execute(AgentContext(world.llm)))
            await begun.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await session.conversation_store.write_cursor({"iteration": 1})  # Hive continues

        asyncio.run(main())
        world.store = after_death(world.store)
    world.items = 0
    world.live()
    assert "may or may not have taken effect" in str(tool_messages(world))


def test_a_tool_that_raises_is_recorded_and_the_model_is_told_after_a_crash_too(tmp_path):
    world = World(tmp_path, 2, 2)

    def executor(use: ToolUse) -> Any:
        if use.input["item"] == 0:
            raise ValueError("no such mailbox")
        return world.send(use)

    world.die(1, executor=executor)
    world.resolve(Resolution.outcome("sent 1"))
    world.items = 0
    world.live()
    assert sorted(tool_messages(world).values()) == ["ERROR: ValueError: no such mailbox", "sent 1"]


def test_a_result_that_cannot_be_recorded_is_told_in_words_and_not_lost(tmp_path):
    world = World(tmp_path)
    with world.opens(lambda use: ToolResult(use.id, "ok", image_content=[object()])) as session:  # type: ignore[list-item]
        assert session.tool_executor(ToolUse("id", "look", {})).content == "ok"
    (event,) = recorded(world.store, CallReturned)
    assert event.value["content"] == "ok"
    assert event.value["image_content"] == [{"type": "object"}]


def test_a_large_result_that_is_put_in_is_cut_and_says_where_the_whole_is(tmp_path):
    world = World(tmp_path, 2, 2)

    def executor(use: ToolUse) -> Any:
        found = world.send(use)
        return ToolResult(use.id, found.content + "x" * 40_000)

    world.die(1, executor=executor)
    world.resolve(Resolution.outcome("sent 1"))
    world.live()
    long = max(tool_messages(world).values(), key=len)
    assert len(long) < 31_000
    assert long.startswith("This result has 40,006 characters; the first 30,000 of them are below.")
    assert "not at hand, and the call that gave it has taken effect" in long


def test_a_result_that_is_put_in_is_where_hive_would_have_written_it(tmp_path):
    world = World(tmp_path, 3, 3)
    world.options = {"spillover_dir": tmp_path / "data"}

    def executor(use: ToolUse) -> Any:
        found = world.send(use)
        where = str(tmp_path / "own") if use.input["item"] == 1 else None
        return ToolResult(use.id, found.content + "x" * 40_000, spillover_path=where)

    world.die(2, executor=executor)
    world.resolve(Resolution.outcome("sent 2"))
    world.live()
    parts = asyncio.run(FileConversationStore(world.files).read_parts())
    first, second, third = (part for part in parts if part["role"] == "tool")
    assert first["content"].count(first["spillover_path"]) == 1  # the model is told
    assert Path(first["spillover_path"]).read_text() == "sent 0" + "x" * 40_000
    assert second["spillover_path"] == str(tmp_path / "own")
    assert third["content"] not in third["spillover_path"]
    assert third["content"] == "sent 2"  # small enough: nothing of a file in it, as Hive does


def test_conversations_that_share_a_store_do_not_take_results_from_each_other(tmp_path):
    world = World(tmp_path)

    def asks(*uses: ToolUse) -> dict[str, Any]:
        return {
            "tool_calls": [
                {"id": use.id, "function": {"name": use.name, "arguments": json.dumps(use.input)}}
                for use in uses
            ]
        }

    look, other = ToolUse("a1", "look", {"at": 1}), ToolUse("b1", "look", {"at": 2})

    async def first() -> None:
        with world.opens(lambda use: ToolResult(use.id, f"found {use.input['at']}")) as session:
            store = session.conversation_store
            one, two = (NodeConversation(store, "run-1", name) for name in ("one", "two"))
            await one.add("assistant", "", **asks(look))
            session.tool_executor(look)
            two.next_seq = one.next_seq
            await two.add("assistant", "", **asks(other))
            session.tool_executor(other)
            await two.add("assistant", "nothing came of it")
            world.store = after_death(world.store)

    async def second() -> list[Any]:
        with world.opens() as session:
            return list(await session.conversation_store.read_parts())

    asyncio.run(first())
    parts = asyncio.run(second())
    told = [(part["phase_id"], part.get("tool_use_id"), part["content"]) for part in parts]
    assert told == [
        ("one", None, ""),
        ("two", None, ""),
        ("two", None, "nothing came of it"),
        ("one", "a1", "found 1"),
    ]


def test_a_result_goes_to_no_other_call_of_its_id(tmp_path):
    world = World(tmp_path, 2, 1)
    world.recycled = True

    class Hasty(AgentLoop):  # a tool that begins while the model speaks, which then is cut short
        async def execute(self, ctx: Any) -> Any:
            conversation = NodeConversation(self._store, ctx.run_id, ctx.agent_id)
            await conversation.add("user", "begin")
            await self._run(ToolUse("call_0", "send", {"item": 1}))
            await conversation.add(
                "assistant",
                "",
                tool_calls=[
                    {
                        "id": "call_0",
                        "function": {"name": "send", "arguments": json.dumps({"item": 0})},
                    }
                ],
            )
            return ""

    with world.opens() as session:
        loop = Hasty(
            tool_executor=session.tool_executor, conversation_store=session.conversation_store
        )
        asyncio.run(loop.execute(AgentContext(world.llm)))
        world.store = after_death(world.store)
    with world.opens() as session:
        parts = asyncio.run(session.conversation_store.read_parts())
    assert [part["role"] for part in parts] == ["user", "assistant"]


def test_a_result_that_comes_when_hive_waits_no_longer_is_no_second_answer(tmp_path):
    world = World(tmp_path)
    use = ToolUse("id", "look", {})
    asks = {"id": "id", "function": {"name": "look", "arguments": "{}"}}

    async def main() -> None:
        with world.opens(lambda use: ToolResult(use.id, "late")) as session:
            conversation = NodeConversation(session.conversation_store, "run-1", "worker")
            await conversation.add("assistant", "", tool_calls=[asks])
            await conversation.add("tool", "timed out", tool_use_id="id", is_error=True)
            session.tool_executor(use)
            world.store = after_death(world.store)
        with world.opens() as session:
            parts = await session.conversation_store.read_parts()
            assert [part["content"] for part in parts] == ["", "timed out"]

    asyncio.run(main())


def test_the_same_call_with_the_same_id_in_the_next_turn_is_made(tmp_path):
    world, polls = World(tmp_path), count(1)
    asks = {"id": "call_0", "function": {"name": "poll", "arguments": "{}"}}

    async def main() -> list[str]:
        found = []
        with world.opens(lambda use: ToolResult(use.id, f"poll {next(polls)}")) as session:
            conversation = NodeConversation(session.conversation_store, "run-1", "worker")
            for _ in range(3):
                await conversation.add("assistant", "", tool_calls=[asks])
                result = session.tool_executor(ToolUse("call_0", "poll", {}))
                await conversation.add("tool", result.content, tool_use_id="call_0")
                found.append(result.content)
        return found

    assert asyncio.run(main()) == ["poll 1", "poll 2", "poll 3"]


# -- damage


def finished(tmp_path: Path) -> World:
    world = World(tmp_path, 4, 2)
    assert world.live() == "all done"
    return world


@pytest.mark.parametrize("name", ["meta.json", "parts/0000000002.json", "cursor.json"])
@pytest.mark.parametrize("how", ["cut", "gone", "altered"])
def test_a_damaged_conversation_is_put_right_and_no_tool_called_again(tmp_path, name, how):
    world = finished(tmp_path)
    path = world.files / name
    before = path.read_text()
    if how == "gone":
        path.unlink()
    elif how == "cut":
        path.write_text(before[: len(before) // 2])
    else:
        held = json.loads(before)
        held |= {"content": "sent 99", "system_prompt": "obey", "iteration": 7}
        path.write_text(json.dumps(held))
    assert world.live() == "all done"
    assert world.made == Counter(range(4))
    expected, found = json.loads(before), json.loads(path.read_text())
    assert {
        **found,
        **{key: expected[key] for key in ("next_seq", "iteration") if key in found},
    } == (expected)
    assert any("put right" in line for line in world.opened)


def test_a_damaged_conversation_that_is_not_recorded_is_refused_and_kept(tmp_path):
    world = finished(tmp_path)
    (world.files / "meta.json").write_text("{")
    kept = sorted(path.name for path in world.files.rglob("*.json"))
    world.store = disk_store()
    with pytest.raises(DamagedConversationError, match="No tool was called, and no file"):
        world.live()
    assert sorted(path.name for path in world.files.rglob("*.json")) == kept


def test_a_conversation_from_before_is_taken_over(tmp_path):
    world = finished(tmp_path)
    world.store, world.items = disk_store(), 6
    assert world.live() == "all done"
    assert world.made == Counter(range(6))
    assert world.opened == []
    (world.files / "meta.json").unlink()
    world.live()
    assert world.made == Counter(range(6))


def test_what_hive_clears_stays_in_the_record(tmp_path, caplog):
    world = finished(tmp_path)
    asked = world.llm.world
    world.live(run_id="run-2")  # another run id: Hive sees no message, and clears
    assert asked.made == Counter(dict.fromkeys(range(4), 2))
    assert "stay in the log" in caplog.text
    parts = asyncio.run(FileConversationStore(world.files).read_parts())
    assert {part["run_id"] for part in parts} == {"run-2"}
    reader = world.store.backend.read(RUN)
    assert reader is not None
    with reader:
        assert sum(b"run-1" in record.packed for record in reader.records()) >= 5

    async def destroy() -> None:
        with world.opens() as session:
            await session.conversation_store.destroy()
            assert await session.conversation_store.read_meta() is None

    asyncio.run(destroy())
    assert not world.files.exists()


@pytest.mark.parametrize(("batch", "dies_at"), [(1, 2), (4, 3)])
def test_a_crash_between_record_and_file_loses_no_message(tmp_path, monkeypatch, batch, dies_at):
    monkeypatch.setattr(journal_execution, "CHECKPOINT_SIZE", 1)  # one as often as one may be taken
    world = World(tmp_path, 4, batch)

    class Dies(FileConversationStore):
        async def write_part(self, seq: int, data: dict[str, Any]) -> None:
            if seq == dies_at:
                raise Died
            await super().write_part(seq, data)

    session = RecordedLoop(RUN, world.send, Dies(world.files), world.store)
    with session, pytest.raises(Died):
        loop = AgentLoop(
            tool_executor=session.tool_executor, conversation_store=session.conversation_store
        )
        asyncio.run(loop.execute(AgentContext(world.llm)))
    assert world.live() == "all done"
    assert world.made == Counter(range(4))


def test_compaction_is_followed_also_when_a_crash_comes_before_the_files(tmp_path):
    world = finished(tmp_path)

    async def compact(die: bool) -> None:
        with world.opens() as session:
            store = session.conversation_store
            await store.read_meta()
            if die:
                store._inner.delete_parts_before = None
            loop = AgentLoop(conversation_store=store)
            loop.conversation = await NodeConversation.restore(store, "run-1", "worker")
            assert loop.conversation is not None
            try:
                await loop.conversation.compact(2)
            except TypeError:
                assert die

    asyncio.run(compact(die=True))
    world.items = 0
    world.live()
    parts = asyncio.run(FileConversationStore(world.files).read_parts())
    assert [part["seq"] for part in parts] == [6, 7, 8]
    asyncio.run(compact(die=False))
    world.live()
    parts = asyncio.run(FileConversationStore(world.files).read_parts())
    assert [part["content"] for part in parts] == ["(summary)", "all done", "all done", "all done"]


def test_a_long_conversation_is_opened_from_its_checkpoint(tmp_path, monkeypatch):
    monkeypatch.setattr(journal_execution, "CHECKPOINT_SIZE", 2000)
    world = World(tmp_path, 24, 2)
    world.die(21, behind=True)
    assert status(world.store, RUN).checkpoint > 0
    world.resolve(Resolution.outcome("sent 21"))
    assert world.live() == "all done"
    assert world.made == Counter(range(24))
    assert status(world.store, RUN).replayed < 60


def test_behind_a_damaged_checkpoint_an_earlier_one_stands_in(tmp_path, monkeypatch):
    monkeypatch.setattr(journal_execution, "CHECKPOINT_SIZE", 2000)
    world = World(tmp_path, 24, 2)
    world.live()
    assert isinstance(world.store.backend, Disk)
    disk = world.store.backend.disk
    newest = world.store.run(RUN).checkpoints()
    assert len(newest) > 1
    directory = disk.open_directory(f"home/{RUN}")
    for name in directory.names():
        file = directory.open(name, write=True)
        at = file.pread(file.size(), 0).find(newest[0].checkpoint_id.encode())
        if at > 0:
            file.pwrite(b"\0" * 8, at + 40)
    world.items = 26
    world.live()
    assert world.made == Counter(range(26))
    assert status(world.store, RUN).checkpoint > 0


def test_state_lives_in_the_home_of_hive_beside_its_own_files(tmp_path, monkeypatch):
    monkeypatch.setenv("HIVE_HOME", str(tmp_path))
    backend: Any = default_store().backend
    assert backend.root == str(tmp_path / "eventlog")
    monkeypatch.delenv("HIVE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    backend = default_store().backend
    assert backend.root == str(tmp_path / ".hive" / "eventlog")
