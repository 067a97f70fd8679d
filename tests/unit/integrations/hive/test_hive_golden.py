"""Conversations that were recorded before they were journals of calls are resumed."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest

from recovery import CheckpointStore, InDoubtError, Resolution
from recovery.inspect.status import status
from recovery.integrations.hive import RecordedLoop
from tests.data.hive_conversations import CONVERSATIONS, MADE
from tests.support.hive.loop import FileConversationStore, ToolResult, ToolUse


def opened(
    home: Path, name: str, after_crash: Any, *uses: ToolUse, made: list[str] | None = None
) -> tuple[list[dict[str, Any]], list[str]]:
    """The messages of a conversation when a process has opened it and its model asks for these;
    and what was executed."""
    executed: list[str] = [] if made is None else made

    def execute(use: ToolUse) -> ToolResult:
        executed.append(f"{use.name} {use.input}")
        return ToolResult(use.id, "made now")

    async def main(session: RecordedLoop) -> list[dict[str, Any]]:
        parts: list[dict[str, Any]] = await session.conversation_store.read_parts()
        for use in uses:
            session.tool_executor(use)
        return parts

    files = FileConversationStore(home / f"{name}.hive")
    with (
        CheckpointStore(home) as store,
        RecordedLoop(name, execute, files, store, after_crash=after_crash, node_id="n") as session,
    ):
        return asyncio.run(main(session)), executed


@pytest.fixture
def home(tmp_path: Path) -> Path:
    shutil.copytree(CONVERSATIONS, tmp_path / "runs")
    return tmp_path / "runs"


@pytest.mark.parametrize("name", ["cut_short", "long"])
def test_results_that_no_message_has_are_put_in_and_nothing_is_made_again(home, name):
    with pytest.raises(InDoubtError) as told:
        opened(home, name, "park")
    (call,) = told.value.calls
    assert (call.tool, call.call_id, call.kwargs["do"]) == ("send", "call_2", "die")
    item, key = call.kwargs["item"], call.idempotency_key
    with CheckpointStore(home) as store:
        store.run(name).resolve(key, Resolution.outcome("as the mailbox says"))
    parts, executed = opened(home, name, "park")
    assert [part["content"] for part in parts[-3:]] == [
        f"sent {item - 2}",
        f"ValueError: no such item: {item - 1}",
        "as the mailbox says",
    ]
    assert [part["tool_use_id"] for part in parts[-3:]] == ["call_0", "call_1", "call_2"]
    assert parts[-3]["image_content"] == [{"type": "none"}]
    assert [part["seq"] for part in parts] == list(range(len(parts)))
    assert executed == []
    assert opened(home, name, "park") == (parts, [])  # and once more


def test_a_call_that_is_made_again_keeps_its_key(home):
    found = []

    def look(call: Any) -> Resolution:
        found.append(call.idempotency_key)
        return Resolution.retry()

    with pytest.raises(InDoubtError) as told:
        opened(home, "cut_short", "park")
    parts, executed = opened(home, "cut_short", {"send": look})
    assert found == [told.value.calls[0].idempotency_key]
    assert executed == ["send {'do': 'die', 'item': 8}"]
    assert parts[-1]["content"] == "made now"


def test_a_conversation_that_was_left_continues_and_its_old_results_are_not_served(home):
    again = ToolUse("call_0", "send", {"item": 7, "do": "do"})
    parts, executed = opened(home, "left", "park", again)
    assert len(parts) == 10 and executed == ["send {'item': 7, 'do': 'do'}"]
    with CheckpointStore(home) as store:
        assert status(store, "left").state == "interrupted"  # no message has that result


def test_nothing_else_is_stored() -> None:
    names = {one.__name__ for one in MADE}
    assert {one.name for one in CONVERSATIONS.iterdir()} == names | {f"{one}.hive" for one in names}
