"""Golden records of Hive's conversations: `python -m tests.data.hive_conversations`.

They were made before these were journals of calls. Each is a run and Hive's files beside it. Once
made they are never written again.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from eventlog.testing import Crash
from recovery.integrations.hive import RecordedLoop
from tests.data.make_runs import Maker, Stored, _fixed, write
from tests.support.hive.loop import FileConversationStore, NodeConversation, ToolResult, ToolUse

CONVERSATIONS = Path(__file__).parent / "hive_conversations"
ITEMS = 3  # of a turn


class Asks:
    """A conversation whose model asks for its items under the ids call_0 to call_2 in each turn."""

    def __init__(self, maker: Maker, run_id: str, files: Path) -> None:
        self.maker, self.run_id, self.files = maker, run_id, files

    def tool(self, use: ToolUse) -> ToolResult:
        match use.input["do"]:
            case "fail":
                raise ValueError(f"no such item: {use.input['item']}")
            case "die":
                self.maker.die()
        return ToolResult(use.id, f"sent {use.input['item']}", image_content=[{"type": "none"}])

    async def turn(self, session: RecordedLoop, talk: NodeConversation, *what: str) -> None:
        uses = [
            ToolUse(f"call_{at}", "send", {"item": talk.next_seq + at, "do": do})
            for at, do in enumerate(what)
        ]
        asked = [
            {"id": use.id, "function": {"name": use.name, "arguments": json.dumps(use.input)}}
            for use in uses
        ]
        await talk.add("assistant", "next", tool_calls=asked)
        results = []
        for use in uses:
            try:
                results.append(session.tool_executor(use))
            except ValueError as exc:
                results.append(ToolResult(use.id, str(exc), is_error=True))
        for result in results:
            await talk.add(
                "tool", result.content, tool_use_id=result.tool_use_id, is_error=result.is_error
            )

    def live(self, turns: list[list[str]], *, leaves: bool = False) -> None:
        """These turns; then the process dies, unless it ``leaves`` in good order."""

        async def main() -> None:
            files = FileConversationStore(self.files)
            session = RecordedLoop(self.run_id, self.tool, files, self.maker.store, node_id="n")
            store = session.conversation_store
            talk = await NodeConversation.restore(store, "run-1") or NodeConversation(
                store, "run-1", "n"
            )
            for what in turns:
                await talk.add("user", "go on")
                await self.turn(session, talk, *what)
                await store.write_cursor({"next_seq": talk.next_seq, "iteration": talk.next_seq})
            if leaves:
                session.__exit__(None, None, None)

        with suppress(Crash):
            asyncio.run(main())
        self.maker.disk = self.maker.disk.after_process_death()


def cut_short(asks: Asks) -> None:
    """Died in the third call of its second turn; the second had failed. No message has a result."""
    asks.live([["do"] * ITEMS, ["do", "fail", "die"]])


def long(asks: Asks) -> None:
    """The same behind checkpoints (made with one every 3,000 bytes), in its third process."""
    asks.live([["do"] * ITEMS] * 2)
    asks.live([["do"] * ITEMS] * 3)
    asks.live([["do", "fail", "die"]])


def left(asks: Asks) -> None:
    """Left in good order."""
    asks.live([["do"] * ITEMS] * 2, leaves=True)


MADE: list[Callable[[Asks], None]] = [cut_short, long, left]


def make(conversation: Callable[[Asks], None]) -> Stored:
    """The files of one of them: of the run, and of Hive."""
    maker, name = Maker(700 + MADE.index(conversation)), conversation.__name__
    with _fixed(maker), tempfile.TemporaryDirectory() as home:
        conversation(Asks(maker, name, Path(home)))
        files: dict[str, Any] = {
            f"{name}.hive/{path.relative_to(home)}": path.read_bytes()
            for path in Path(home).rglob("*.json")
        }
        return maker.stored() | files


if __name__ == "__main__":
    write(CONVERSATIONS, map(make, MADE))
