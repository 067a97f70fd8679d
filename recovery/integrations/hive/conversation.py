"""The conversation store of an AgentLoop: Hive's own, recorded, healed, and never deleted.

Hive's files stay where they are, for what else reads them; each message is recorded first. When the
conversation is opened, files that are lost, cut or altered are put right from the record, and what
tools have done, and the conversation does not know, is put into it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Awaitable, Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

from eventlog import RefusedValueError
from recovery import RecoveryError
from recovery.call_journal import FinishedCall
from recovery.integrations.hive.conversation_record import (
    SHARED,
    ConversationRecord,
    conversation_of,
    ids_of,
)
from recovery.integrations.hive.tools import outcome_of

_logger = logging.getLogger("recovery")

RESULT_SIZE_MAX = 30_000  # characters of a result that is put in: as much as Hive lets into one
# What loops of Hive's do themselves, in 0.8.0 or August 2026: no tool executor is asked for it.
HIVES_OWN = frozenset(
    "ask_user ask_user_multiple collect_result escalate report_to_parent search_tools set_output "
    "suggest_colony".split()
)


class DamagedConversationError(RecoveryError):
    """Hive's files of a conversation are damaged, and nothing of it is recorded to put them right.

    Nothing was changed; Hive would have deleted all of it. Put the file back from a copy, or begin
    a new conversation in another directory.
    """


class RecordedConversation:
    """In the place of Hive's ConversationStore: the methods of its protocol, and ``clear``.

    ``opened``: what was done when it was opened, a line each; empty before, and where there was
    nothing to do.
    """

    def __init__(
        self,
        record: ConversationRecord,
        inner: Any,
        settle: Callable[[], Awaitable[None]],
        function: Callable[[str, dict[str, Any]], tuple[Callable[..., Any], dict[str, Any]]],
        spillover_dir: str | Path | None = None,
    ) -> None:
        """Not for users: see ``RecordedLoop``."""
        self._record, self._journal = record, record.journal
        self._inner, self._settle, self._function = inner, settle, function
        self._spillover_dir = spillover_dir
        self._opening = asyncio.Lock()
        self._is_open = False
        self.opened: list[str] = []

    def of_node(self, node_id: str) -> Any:
        """The same for a node: messages that say of no node that they are its, are this one's."""
        return _OfNode(self, node_id) if node_id else self

    # -- the protocol

    async def write_part(self, seq: int, data: dict[str, Any]) -> None:
        """Record a message, and write it."""
        await self._open()
        self._write(seq, data)
        await self._inner.write_part(seq, data)

    async def read_parts(self) -> list[dict[str, Any]]:
        """All messages, in order."""
        await self._open()
        return [deepcopy(part) for part in self._record.parts]

    async def write_meta(self, data: dict[str, Any]) -> None:
        """Record and write what the conversation is about."""
        await self._open()
        self._journal.keep("meta", _plain(data))
        await self._inner.write_meta(data)

    async def read_meta(self) -> dict[str, Any] | None:
        """The same; None of a conversation that has not begun, or was cleared, and of no other."""
        await self._open()
        found: dict[str, Any] | None = deepcopy(self._journal.values.get("meta"))
        return found

    async def write_cursor(self, data: dict[str, Any]) -> None:
        """Record and write where the loop is."""
        await self._open()
        self._journal.keep("cursor", _cursor(_plain(data)))
        await self._inner.write_cursor(data)

    async def read_cursor(self) -> dict[str, Any] | None:
        """The same."""
        await self._open()
        found: dict[str, Any] | None = await self._inner.read_cursor()
        return found

    async def delete_parts_before(self, seq: int, run_id: str | None = None) -> None:
        """Take the messages before ``seq`` out of the conversation; the record keeps them."""
        await self._open()
        self._journal.keep("from", seq)
        self._record.write(0, self._record.place_of(seq), [])
        # 0.8.0 has no run ids.
        await self._inner.delete_parts_before(seq, *([] if run_id is None else [run_id]))

    async def write_partial(self, seq: int, data: dict[str, Any]) -> None:
        """Keep what a model has said so far; not recorded."""
        await self._open()
        await self._inner.write_partial(seq, data)

    async def read_partial(self, seq: int) -> dict[str, Any] | None:
        """The same."""
        await self._open()
        found: dict[str, Any] | None = await self._inner.read_partial(seq)
        return found

    async def read_all_partials(self) -> list[dict[str, Any]]:
        """All of them; none in 0.8.0, which does not keep any."""
        await self._open()
        return await self._partials()

    async def clear_partial(self, seq: int) -> None:
        """Forget one."""
        await self._inner.clear_partial(seq)

    async def clear(self) -> None:
        """Begin a new conversation. That of before is gone from Hive's files, and in the record."""
        await self._open()
        await self._leave()
        # What 0.8.0 has for it: it makes the directory again when it writes.
        await getattr(self._inner, "clear", self._inner.destroy)()

    async def destroy(self) -> None:
        """Remove Hive's files. What they said is in the record."""
        await self._open()
        await self._leave()
        await self._inner.destroy()

    async def close(self) -> None:
        """Close Hive's store; the record stays open until the RecordedLoop is closed."""
        await self._inner.close()

    def __getattr__(self, name: str) -> Any:  # what else Hive's store has
        return getattr(self._inner, name)

    # -- what is recorded

    def _write(self, seq: int, data: dict[str, Any]) -> None:
        record = self._record
        with record.mutex:
            at = record.place_of(seq)
            part = _plain({**data, "seq": seq})
            if record.part(seq) is None:
                record.write(at, at, [part])
            elif record.parts[at] != part:
                record.write(at, at + 1, [part])

    async def _partials(self) -> list[dict[str, Any]]:
        read = getattr(self._inner, "read_all_partials", None)
        found: list[dict[str, Any]] = [] if read is None else await read()
        return found

    async def _leave(self) -> None:
        record = self._record
        if not record.parts and self._journal.values.get("meta") is None:
            return
        partials = await self._partials()
        with record.mutex:
            if partials:
                self._journal.keep("left", _plain(partials))
            _logger.warning(
                "run %s: Hive clears the conversation; its %d messages stay in the log, up to "
                "LSN %d",
                self._journal.run_id,
                len(record.parts),
                self._journal.last_lsn,
            )
            self._journal.keep("meta", None)
            self._journal.keep("cursor", None)
            self._journal.keep("from", 0)
            record.write(0, len(record.parts), [])
            self._journal.forget()  # the new conversation asks for nothing of these

    # -- opening it

    async def _open(self) -> None:
        async with self._opening:
            if self._is_open:
                return
            await self._agree()
            await self._settle()
            await self._promote_partials()
            await self._heal()
            self._journal.resume(self._record.known())
            self._is_open = True
        for line in self.opened:
            _logger.warning("run %s: %s", self._journal.run_id, line)

    async def _agree(self) -> None:
        """Files and record say the same: the record counts for what it has, and takes what it does
        not know, from the time before it began or from a loop without it."""
        record, journal, inner = self._record, self._journal, self._inner
        meta, cursor = await inner.read_meta(), await inner.read_cursor()
        parts = {part["seq"]: part for part in await inner.read_parts() if _is_message(part)}
        known = journal.values.get("meta")
        if meta is None and known is None and (parts or cursor or journal.lost):
            why = "nothing of it is recorded"
            if journal.lost:
                why = f"records of it are lost too (LSN {journal.lost})"
            raise DamagedConversationError(
                f"run {journal.run_id!r}: meta.json of a conversation of {len(parts)} messages "
                f"cannot be read, and {why}. No tool was called, and no file changed. Put Hive's "
                "files back from a copy, and open it again. To give the conversation up: another "
                "directory, and another run_id; what its tools have done is then not known."
            )
        first = journal.values.get("from") or 0
        # Hive writes no number that its cursor has not come to; an altered one may say anything.
        limit = (cursor or {}).get("next_seq", max(parts, default=0))
        news = [seq for seq in sorted(parts) if record.part(seq) is None and seq <= limit]
        if any(seq < first for seq in news) and record.place_of(first) == 0:
            await inner.delete_parts_before(first)  # a crash came between record and files
            news = [seq for seq in news if seq >= first]
        for seq in news:
            self._write(seq, parts[seq])
        for part in record.parts:
            await self._put_right(part, parts.get(part["seq"]))
        known = journal.values.get("meta")
        if known is not None and (meta is None or (meta != known and not news)):
            self.opened.append("meta.json was lost or altered, and is put right from the record")
            await inner.write_meta(deepcopy(known))
        elif meta is not None:
            journal.keep("meta", _plain(meta))
        await self._agree_about_cursor(cursor, bool(news))
        await self._doubt(set(news))

    async def _doubt(self, news: set[int]) -> None:
        """What was asked for by a message that only Hive's files have, and has neither a result nor
        a record, may have been done: by a loop without this, or among records that are lost."""
        record = self._record
        last = self._last_turns()
        asking = [part for part in last.values() if part["seq"] in news]
        if self._journal.lost or record.is_new:
            asking += [part for part in await self._partials() if _is_message(part)]
        for part in asking:
            told = {one.get("tool_use_id") for one in record.parts if one["seq"] > part["seq"]}
            known = {one.call_id for one in self._journal.unfinished()}
            known |= {one.call_id for one in record.missing()}
            for call_id, how in ids_of(part).items():
                tool, given = _asked(how)
                if tool not in HIVES_OWN and call_id not in told | known:
                    function, given = self._function(tool, given or {})
                    self._journal.doubt(function, **given, call_id=call_id)

    async def _put_right(self, part: Any, found: Any) -> None:
        if found == part:
            return
        what = "lost or cut" if found is None else "altered"
        if found is not None:
            self._journal.keep("set aside", _plain(found))
        self.opened.append(f"message {part['seq']} was {what}, and is put right from the record")
        await self._inner.write_part(part["seq"], deepcopy(part))

    async def _agree_about_cursor(self, cursor: Any, is_newer: bool) -> None:
        record = self._record
        known = self._journal.values.get("cursor")
        after = record.parts[-1]["seq"] + 1 if record.parts else 0
        if known is not None and (cursor is None or (_cursor(cursor) != known and not is_newer)):
            self.opened.append("cursor.json was lost or altered, and is put right from the record")
            cursor = {**deepcopy(known), "next_seq": after}
            await self._inner.write_cursor(cursor)
        elif cursor is not None:
            self._journal.keep("cursor", _cursor(_plain(cursor)))
        if record.parts and (cursor or {}).get("next_seq", 0) < after:
            await self._inner.write_cursor({**(cursor or {}), "next_seq": after})

    async def _promote_partials(self) -> None:
        """A tool that may run beside others starts while the model still speaks: then what it was
        asked for by is a partial, and becomes a message, so that its result has a place."""
        for partial in await self._partials():
            seq = partial.get("seq", -1)
            asked = ids_of(partial).keys()
            missing = {one.call_id for one in self._record.missing()}
            if asked.isdisjoint(missing) or self._record.part(seq) is not None:
                continue
            if self._record.parts and seq <= self._record.parts[-1]["seq"]:
                continue
            part = {name: value for name, value in partial.items() if value is not None}
            self._write(seq, part)
            await self._inner.write_part(seq, part)
            await self._inner.clear_partial(seq)
            self.opened.append(f"message {seq}, which the model had not ended, is one now")

    async def _heal(self) -> None:
        """Put in what tools have done and the conversation does not know, where Hive looks for it:
        right behind the message that asks for it, and what had come after that behind it."""
        record = self._record
        # Of each conversation in the store the last one: ids may be those of former turns again.
        for asking in self._last_turns().values():
            at = record.place_of(asking["seq"]) + 1
            # Hive may have waited no longer for a tool, and said so, before that had its result.
            told = {
                part.get("tool_use_id")
                for part in record.parts[at:]
                if part["role"] == "tool" and conversation_of(part) == conversation_of(asking)
            }
            made = {
                call_id: call
                for call_id, how in ids_of(asking).items()
                if call_id not in told and (call := record.outcome(call_id, *_asked(how)))
            }
            if not made:
                continue
            while at < len(record.parts) and _answers(record.parts[at], asking):
                at += 1
            new = [self._answer(asking, call_id, call) for call_id, call in made.items()]
            rest = [deepcopy(part) for part in record.parts[at:]]
            seq = record.parts[at - 1]["seq"]
            # Invariant: no message keeps a number that it is not written under, for there is no
            # way to take a single one out of Hive's files.
            for part in [*new, *rest]:
                seq += 1
                part["seq"] = seq = max(seq, part.get("seq", 0))
            self.opened += [
                f"the recorded result of {call.tool} ({call_id}) was put in"
                for call_id, call in made.items()
            ]
            record.write(at, len(record.parts), [*new, *rest])
            for part in reversed([*new, *rest]):
                await self._inner.write_part(part["seq"], part)
            cursor = await self._inner.read_cursor() or {}
            await self._inner.write_cursor({**cursor, "next_seq": seq + 1})

    def _last_turns(self) -> dict[tuple[Any, ...], Any]:
        """The last message of the model in each conversation of the store."""
        parts = self._record.parts
        return {conversation_of(part): part for part in parts if part["role"] == "assistant"}

    def _answer(self, asking: Any, call_id: str, call: FinishedCall) -> dict[str, Any]:
        held = outcome_of(call)
        text = str(held.get("content") or "")
        part = {"role": "tool", "content": text, "tool_use_id": call_id}
        part |= {name: asking[name] for name in SHARED if asking.get(name) is not None}
        for name in ("is_error", "is_skill_content", "image_content", "spillover_path"):
            if held.get(name):
                part[name] = held[name]
        if self._spillover_dir is not None and not part.get("is_error"):
            part.setdefault("spillover_path", self._spill(call, text))
        if len(text) > RESULT_SIZE_MAX:
            part["content"] = _cut(text, part.get("spillover_path"))
        return part

    def _spill(self, call: FinishedCall, text: str) -> str:
        """Where the whole result is, for the model's own tools: Hive's loop writes it there too."""
        name = re.sub(r"[^A-Za-z0-9_-]", "_", call.tool)
        path = Path(self._spillover_dir or "").resolve() / f"{name}_recorded_{call.lsn}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return str(path)


def _cut(text: str, path: str | None) -> str:
    """The beginning of a result, and what a model can do to see the rest."""
    rest = "The rest of it is not at hand, and the call that gave it has taken effect"
    if path is not None:
        rest = f"All of it is in the file {path}, which your file tools can read or search"
    return (
        f"This result has {len(text):,} characters; the first {RESULT_SIZE_MAX:,} of them are "
        f"below. {rest}.\n\n{text[:RESULT_SIZE_MAX]}"
    )


class _OfNode:
    def __init__(self, of_all: RecordedConversation, node_id: str) -> None:
        self._of_all, self._node_id = of_all, node_id

    async def write_part(self, seq: int, data: dict[str, Any]) -> None:
        await self._of_all.write_part(seq, self._named(data))

    async def write_partial(self, seq: int, data: dict[str, Any]) -> None:
        await self._of_all.write_partial(seq, self._named(data))

    def _named(self, data: dict[str, Any]) -> dict[str, Any]:
        return {**data, "phase_id": data.get("phase_id") or self._node_id}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._of_all, name)


def _answers(part: Any, asking: Any) -> bool:
    """Whether a message is an answer to this one, or of another conversation in the same store."""
    return part["role"] == "tool" or conversation_of(part) != conversation_of(asking)


def _asked(how: Any) -> tuple[str, dict[str, Any] | None]:
    """The tool that a message asks for, and the arguments; None where Hive has cut them."""
    function = how.get("function") or {}
    try:
        given = json.loads(function.get("arguments") or "{}")
    except ValueError:
        given = None
    is_whole = isinstance(given, dict) and "_compacted" not in given
    return function.get("name") or "", given if is_whole else None


def _is_message(part: Any) -> bool:
    return isinstance(part, dict) and type(part.get("seq")) is int and "role" in part


def _cursor(cursor: dict[str, Any]) -> dict[str, Any]:
    """What a cursor says that does not follow from the messages."""
    return {name: value for name, value in cursor.items() if name != "next_seq"}


def _plain(data: Any) -> Any:
    """Data as Hive's files have it, which are JSON."""
    try:
        return json.loads(json.dumps(data))
    except (TypeError, ValueError) as exc:
        raise RefusedValueError("conversation", str(exc)) from None
