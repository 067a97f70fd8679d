"""Records kept checkpoints again: to free what is before them, or as another thread.

A checkpoint that is recorded again has the same values, so a crash on the way changes nothing. Then
one snapshot of the index names what is kept. Only after it is durable, older segments are removed.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from eventlog import WritableLog
from recovery.integrations.langgraph.elements import Address, Element
from recovery.integrations.langgraph.index import CHECKPOINT, WRITES, Entry
from recovery.integrations.langgraph.reading import Reading
from recovery.integrations.langgraph.serializer import Codec
from recovery.integrations.langgraph.thread import Thread
from recovery.integrations.langgraph.values import (
    Encoder,
    Form,
    ListState,
    State,
    address_of,
    is_list,
    resolve,
    stored_at,
)

STATES_MAX = 32

_one_copy = threading.Lock()  # a copy holds two threads: two copies could wait for one another


def delete(thread: Thread) -> None:
    """Delete a thread, if there is one."""
    if not thread.exists():
        return
    with thread.writing():
        pass  # waits for another process that has it
    with thread.lock:
        thread.delete()


def prune(thread: Thread, codec: Codec, choose: Callable[[list[Entry]], list[Entry]]) -> None:
    """Keep the chosen checkpoints of a thread; without any, delete it."""
    if not thread.exists():
        return
    with thread.writing() as log:
        entries = thread.index.all()
        kept = choose(entries)
        if kept and len(kept) < len(entries):
            log.roll()
            first = log.last_lsn + 1
            unrecorded = thread.index.unrecorded()
            made = _Rewriter(thread, thread, codec, log, kept).write(kept, unrecorded)
            thread.index.keep(made)
            thread.snapshot(log, full=True)
            thread.states.clear()
            log.commit()
            log.truncate_before(first)
    if entries and not kept:
        delete(thread)


def copy(source: Thread, target: Thread, codec: Codec) -> None:
    """Copy all checkpoints of a thread to one that has none."""
    with _one_copy:
        with source.lock:
            index = source.look()
            entries, unrecorded = index.all(), index.unrecorded()
        if not entries or index.is_partial:
            return
        try:
            with target.writing() as log:
                if target.index.all():
                    raise ValueError(
                        f"thread {target.thread_id!r} has checkpoints. Nothing was copied. "
                        "Delete it first, or copy to another thread."
                    )
                target.begin(log, copying=True)
                made = _Rewriter(source, target, codec, log, entries).write(entries, unrecorded)
                target.index.keep(made)
                target.snapshot(log, full=True)
        except ValueError:
            raise
        except BaseException:
            with suppress(Exception):  # if it stays, who writes to the target next deletes it
                delete(target)
            raise


class _Rewriter:
    """Records checkpoints of one thread in the log of another, or of the same one."""

    def __init__(
        self, source: Thread, target: Thread, codec: Codec, log: WritableLog, kept: list[Entry]
    ) -> None:
        self._source, self._target, self._codec, self._log = source, target, codec, log
        self._kept = {(entry.ns, entry.id) for entry in kept}
        self._made: dict[Address, Element] = {}
        self._states: OrderedDict[tuple[str, str], dict[str, State]] = OrderedDict()

    def write(self, kept: list[Entry], unrecorded: list[Entry]) -> list[Entry]:
        """The entries of what was recorded."""
        made = [self._checkpoint(entry) for entry in sorted(kept, key=lambda entry: entry.lsn)]
        return made + [self._writes(entry, Entry(entry.ns, entry.id)) for entry in unrecorded]

    def _checkpoint(self, entry: Entry) -> Entry:
        reading = Reading(self._source, self._codec)
        body = dict(reading.body(entry.lsn))
        encoder = Encoder(self._codec, {}, [])
        base = self._states.get((entry.ns, entry.parent), {})
        body["values"] = {
            channel: self._value(encoder, channel, reading, (entry.lsn, channel), base.get(channel))
            for channel in body["values"]
        }
        names = [*body["values"]]
        body |= self._history(entry, encoder, reading)
        lsn = self._target.append(self._log, CHECKPOINT, body)
        states = encoder.written(lsn)[: len(names)]
        self._states[entry.ns, entry.id] = dict(zip(names, states, strict=True))
        if len(self._states) > STATES_MAX:
            self._states.popitem(last=False)
        made = Entry(entry.ns, entry.id)
        made.lsn, made.parent, made.run = lsn, entry.parent, entry.run
        return self._writes(entry, made)

    def _writes(self, entry: Entry, made: Entry) -> Entry:
        reading = Reading(self._source, self._codec)
        for old in entry.writes:
            body = dict(reading.body(old))
            encoder = Encoder(self._codec, {}, [])
            body["writes"] = [
                [channel, idx, self._value(encoder, part, reading, (old, part))]
                for part, (channel, idx, _) in enumerate(body["writes"])
            ]
            lsn = self._target.append(self._log, WRITES, body)
            encoder.written(lsn)
            made.writes.append(lsn)
        return made

    def _history(self, entry: Entry, encoder: Encoder, reading: Reading) -> dict[str, Any]:
        """What pruned ancestors wrote to channels whose value the checkpoint does not have."""
        if not entry.parent or (entry.ns, entry.parent) in self._kept:
            names = reading.body(entry.lsn).get("histories", [])
        else:
            body = reading.body(entry.lsn)
            versions = self._codec.restored(body["checkpoint"])["channel_versions"]
            names = [
                name
                for name in versions
                if name not in body["values"] and not name.startswith(("__", "branch:"))
            ]
        kept: list[list[Any]] = []
        for channel, history in reading.histories(entry, names).items():
            if history.seed is not None:
                form = self._value(encoder, len(kept), reading, history.seed)
                kept.append([channel, None, form, "", ""])
            for write in history.writes:
                form = self._value(encoder, len(kept), reading, (write.lsn, write.part))
                kept.append([channel, write.idx, form, write.task, write.path])
        return {"histories": names, "kept": kept} if names else {}

    def _value(
        self,
        encoder: Encoder,
        part: int | str,
        reading: Reading,
        place: tuple[int, int | str],
        base: State | None = None,
    ) -> Form:
        form = reading.form_of(*place)
        if not is_list(form):
            return encoder.whole(part, self._element(address_of(form, *place), reading))
        places, _ = resolve(*place, reading.form_of)
        elements = [self._element(Address(*one), reading) for one in places]
        if not isinstance(base, ListState):
            return encoder.list_of(part, elements, 0, None)
        kept = 0
        for element, before in zip(elements, base.elements(), strict=False):
            if element is not before:
                break
            kept += 1
        return encoder.list_of(part, elements[kept:], kept, base)

    def _element(self, address: Address, reading: Reading) -> Element:
        found = self._made.get(address)
        if found is not None:
            return found
        made = Element(None)
        recorded = self._made.get(address._replace(id=""))
        if address.id and recorded is not None and recorded.address is not None:
            made.address = recorded.address._replace(id=address.id)
        else:
            made.stored, made.new_id = stored_at(address, reading.form_of), address.id
        self._made[address] = made
        return made
