"""The record of a conversation: damaged, repaired, gone; how it ends, goes on and is collected."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from eventlog import EventLog
from eventlog.repair import repair
from recovery import InDoubtError, RecoveryError, Resolution
from recovery.cli.next_steps import Commands
from recovery.errors import DamagedRunError
from recovery.inspect.status import status
from recovery.integrations.hive import DamagedConversationError, RecordedLoop
from recovery.journal.events import CallIntended, MessagesChanged, RunStarted
from tests.support.hive import loop_080 as hive_loop_080
from tests.support.hive.loop import (
    AgentContext,
    FileConversationStore,
    ToolResult,
    ToolUse,
)
from tests.support.lives import RUN, Died, after_death, disk_store, recorded
from tests.unit.integrations.hive.test_hive_loop import LLM, World, finished
from tests.unit.recovery.agent.test_repaired import PATH, damage, disk_of


def killed(tmp_path: Path) -> World:
    """In the fourth tool of its second batch of four, which took effect."""
    world = World(tmp_path, 8, 4)
    world.die(7, behind=True)
    world.policy = lambda call: (
        Resolution.outcome("it was sent") if world.made[call.kwargs["item"]] else Resolution.retry()
    )
    return world


def lsns(world: World) -> list[int]:
    with EventLog.read(PATH, files=disk_of(world.store)) as reader:
        return [record.lsn for record in reader.records()]


def damage_one(world: World, lsn: int) -> str:
    """Damage the record, and repair the log; what the record was."""
    with EventLog.read(PATH, files=disk_of(world.store)) as reader:
        kinds = {record.lsn: record.kind for record in reader.records()}
    seen = iter(sorted(kinds))
    damage(world.store, lambda event: next(seen) == lsn)
    repair(PATH, files=disk_of(world.store), who="ops")
    return kinds[lsn]


def test_whichever_record_is_lost_and_repaired_no_tool_is_called_twice_unasked(tmp_path):
    for lsn in lsns(killed(tmp_path / "count")):
        world = killed(tmp_path / str(lsn))
        what = damage_one(world, lsn)
        if what == RunStarted.kind:
            with pytest.raises(DamagedRunError, match="with which the run began"):
                world.live()
        else:
            assert world.live() == "all done", (lsn, what)
            assert world.made == Counter(range(8)), (lsn, what)
            assert world.live() == "all done"  # and again, from files and record as they are now


def test_a_call_whose_record_is_lost_is_in_doubt_and_can_be_resolved(tmp_path):
    world = killed(tmp_path)
    last = recorded(world.store, CallIntended)[-1]
    damage(world.store, lambda event: isinstance(event, CallIntended) and event == last)
    with pytest.raises(DamagedRunError, match="logdump repair"):
        world.live()
    repair(PATH, files=disk_of(world.store), who="ops")
    truth, world.policy = world.policy, "park"
    with pytest.raises(InDoubtError) as told:
        world.live()
    (call,) = told.value.calls
    assert (call.tool, call.kwargs) == ("send", json.loads(json.dumps({"item": 7})))
    assert status(world.store, RUN).state == "in doubt"
    world.store.run(RUN).resolve(call.lsn, Resolution.outcome("it was sent"))
    world.policy = truth  # of a call beside it, which the stop may have cut short
    assert world.live() == "all done"
    assert world.made == Counter(range(8))


def test_a_record_that_is_gone_or_begun_anew_leaves_what_hive_does_not_know_in_doubt(tmp_path):
    world = killed(tmp_path)
    world.store, world.policy = disk_store(), "park"
    with pytest.raises(InDoubtError) as told:
        world.live()
    assert [call.kwargs["item"] for call in told.value.calls] == [4, 5, 6, 7]
    for call in told.value.calls:
        world.store.run(RUN).resolve(call.lsn, Resolution.outcome("it was sent"))
    assert world.live() == "all done"
    assert world.made == Counter(range(8))


def test_a_tool_of_the_loop_itself_is_never_in_doubt(tmp_path):
    world = World(tmp_path)
    files = FileConversationStore(world.files)

    async def by_hive_alone() -> list[dict[str, Any]]:
        await files.write_meta({"system_prompt": "do it"})
        asked = [
            {"id": name, "function": {"name": name, "arguments": "{}"}}
            for name in ("set_output", "ask_user", "send")
        ]
        await files.write_part(0, {"seq": 0, "role": "user", "content": "go"})
        part = {"seq": 1, "role": "assistant", "content": "", "tool_calls": asked}
        await files.write_part(1, part)
        await files.write_cursor({"next_seq": 2})
        with world.opens() as session:
            found: list[dict[str, Any]] = await session.conversation_store.read_parts()
            return found

    with pytest.raises(InDoubtError) as told:
        asyncio.run(by_hive_alone())
    assert [call.tool for call in told.value.calls] == ["send"]


def test_a_record_and_files_that_are_both_damaged_are_refused_with_a_way_out(tmp_path):
    world = killed(tmp_path)
    damage(world.store, lambda event: isinstance(event, MessagesChanged))
    repair(PATH, files=disk_of(world.store), who="ops")
    meta = (world.files / "meta.json").read_text()
    (world.files / "meta.json").unlink()
    with pytest.raises(DamagedConversationError, match="Put Hive's files back"):
        world.live()
    (world.files / "meta.json").write_text(meta)
    assert world.live() == "all done"
    assert world.made == Counter(range(8))


# -- how it ends, and goes on


def test_a_conversation_that_was_left_in_good_order_has_finished_is_collected_and_goes_on(tmp_path):
    world = finished(tmp_path)
    found = status(world.store, RUN)
    assert (found.state, found.kind) == ("finished", "journal")
    world.items = 6
    assert world.live() == "all done"  # opened again, it goes on
    assert status(world.store, RUN).state == "finished"
    with world.opens():
        assert status(world.store, RUN).state == "running"
    assert [one.run_id for one in world.store.gc(keep=0)] == [RUN]
    world.items = 8  # and is taken over from Hive's files
    assert world.live() == "all done"
    assert world.made == Counter(range(8))


def test_a_conversation_that_was_cut_short_says_how_it_goes_on(tmp_path):
    world = killed(tmp_path)
    world.policy = "park"
    call = world.doubtful()[0]
    found = status(world.store, RUN)
    assert found.state == "in doubt"
    *resolves, last = Commands(RUN, None).next(found)
    assert all(line.startswith(f"recovery resolve {RUN} ") for line in resolves)
    assert last == f"# run its program again, which opens CallJournal('{RUN}')"
    world.store.run(RUN).resolve(call.lsn, Resolution.outcome("sent"))
    found = status(world.store, RUN)
    assert (found.state, Commands(RUN, None).next(found)) == ("interrupted", [last])
    assert world.store.gc(keep=0) == []
    with pytest.raises(ZeroDivisionError), world.opens():
        raise ZeroDivisionError
    assert status(world.store, RUN).state == "interrupted"


def test_a_result_that_the_conversation_does_not_have_keeps_it_from_finishing(tmp_path):
    world = World(tmp_path)
    with world.opens(lambda use: ToolResult(use.id, "found")) as session:
        session.tool_executor(ToolUse("a", "look", {}))
    assert status(world.store, RUN).state == "interrupted"


def test_a_result_that_no_message_asks_for_is_needed_for_one_turn_more(tmp_path):
    for turns, state in ((1, "interrupted"), (2, "finished")):
        world = World(tmp_path / str(turns))

        async def says(world: World = world, turns: int = turns) -> None:
            with world.opens(lambda use: ToolResult(use.id, "found")) as session:
                store = session.conversation_store
                session.tool_executor(ToolUse("a", "look", {}))
                for seq in range(turns):
                    await store.write_part(seq, {"seq": seq, "role": "assistant", "content": "so"})

        asyncio.run(says())
        assert status(world.store, RUN).state == state


def test_a_result_that_has_no_place_answers_the_same_call_under_another_id_once(tmp_path):
    world, made = World(tmp_path), list[str]()

    def look(use: ToolUse) -> ToolResult:
        made.append(use.id)
        return ToolResult(use.id, f"for {use.id}")

    async def asks(*ids: str) -> list[str]:
        with world.opens(look) as session:
            await session.conversation_store.read_parts()
            found = [session.tool_executor(ToolUse(one, "look", {"at": 1})) for one in ids]
            world.store = after_death(world.store)
        assert [one.tool_use_id for one in found] == [*ids]
        return [one.content for one in found]

    assert asyncio.run(asks("a")) == ["for a"]
    assert asyncio.run(asks("b", "c")) == ["for a", "for c"]
    assert made == ["a", "c"]


def test_a_conversation_that_was_cancelled_is_not_gone_on_with(tmp_path):
    world = finished(tmp_path)
    with pytest.raises(ZeroDivisionError), world.opens():
        raise ZeroDivisionError
    world.store.run(RUN).cancel()
    with pytest.raises(RecoveryError, match="was ended"), world.opens():
        pass


# -- 0.8.0


class World080(World):
    """The same with what 0.8.0 has."""

    def live080(self, dies_at: int = -1) -> str:
        self.dies_at = dies_at
        files = hive_loop_080.FileConversationStore(self.files)
        with RecordedLoop(
            RUN, self.send, files, self.store, after_crash=self.policy, node_id="worker"
        ) as session:
            loop = hive_loop_080.EventLoopNode(
                tool_executor=session.tool_executor, conversation_store=session.conversation_store
            )
            asyncio.run(loop.execute(AgentContext(LLM(self))))
            return loop.said


def test_a_conversation_of_0_8_0_is_healed_and_no_tool_called_twice(tmp_path):
    for at in range(4):
        world = World080(tmp_path / str(at), 4, 4)
        with pytest.raises(Died):
            world.live080(dies_at=at)
        world.policy = lambda call, made=world.made: (
            Resolution.outcome("sent") if made[call.kwargs["item"]] else Resolution.retry()
        )
        assert world.live080() == "all done"
        assert world.made == Counter(range(4)), at


def test_the_store_of_0_8_0_can_be_compacted_cleared_and_destroyed(tmp_path):
    world = World080(tmp_path, 2, 2)
    world.live080()

    async def use() -> list[Any]:
        files = hive_loop_080.FileConversationStore(world.files)
        with RecordedLoop(RUN, world.send, files, world.store) as session:
            store = session.conversation_store
            await store.delete_parts_before(2)
            left = [part["seq"] for part in await store.read_parts()]
            assert await store.read_all_partials() == []
            await store.clear()
            assert await store.read_meta() is None
            await store.write_meta({"system_prompt": "anew"})
            await store.destroy()
            return left

    assert asyncio.run(use()) == [2, 3, 4]
    assert not world.files.exists()
