"""Writes checkpoints, as the changes since the last one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from typing import Any

from eventlog import Packed, RefusedValueError
from eventlog.light_dataclass import light_dataclass
from recovery.errors import RecoveryError
from recovery.history.restore_checkpoint import INDEX_WHOLE, VERSION, Generation, Restored
from recovery.history.run_records import SnapshotSink
from recovery.history.state_delta import Base, Seal, StateDelta, checksum, pack_plain
from recovery.journal.messages import Messages
from recovery.values.pack import PACKED_NONE, Plain, pack, pack_list, pack_map
from recovery.values.types import Ref, digest

REF_SIZE = 9  # bytes of a reference to a message, about


@light_dataclass
class CheckpointMeta:
    """The fields of a snapshot besides state and messages.

    ``bytes_since``: bytes that were recorded since the snapshot before. ``removed``: keys of the
    state that were there when a loop of steps was entered, and are not any more; None: all others,
    because a user gave the whole state.
    """

    run_id: str
    step: int
    timestamp: float
    checkpoint_id: str = ""
    recoveries: int = 0
    prologue: tuple[int, ...] = ()
    tool_results: Any = None
    checksum: str = ""
    carried: Mapping[str, Any] = field(default_factory=dict)
    bytes_since: int = 0
    timestamp_text: str | None = None
    removed: tuple[str, ...] | None = ()


def _messages_from(messages: Messages, start: int) -> Packed:
    """The messages from index ``start`` on, or their places in the log."""
    refs = enumerate(messages.refs[start:], start)
    news = [ref or messages.recorded(i) for i, ref in refs]
    return pack_list([one if type(one) is Packed else pack(one, "messages") for one in news])


class CheckpointWriter:
    """Writes the snapshots of one run, each as what changed since an earlier one."""

    def __init__(
        self, log: SnapshotSink, restored: Restored | None = None, seal: Seal = pack_plain
    ) -> None:
        self._log, self.seal = log, seal
        self._bases: list[Base] = restored.bases if restored else []
        self._state = StateDelta(restored.state_at if restored else {}, seal)
        self.generation = restored.generation if restored else Generation()
        self.measures = self.generation != Generation()  # how much is recorded in a generation

    def size(self, messages: Messages) -> int:
        """Bytes of a full copy: the state of the last snapshot, with these messages."""
        return self._state.size() + messages.size + REF_SIZE * len(messages)

    def keys(self) -> Iterable[str]:
        """The keys of the state in the last snapshot."""
        return self._state.keys()

    def begin(
        self, generation: Generation, state_at: Mapping[str, tuple[bytes, int, int, int]]
    ) -> None:
        """Begin a generation: the values of the next snapshot are in these portions."""
        self._bases, self._state, self.generation = [], StateDelta(state_at, self.seal), generation
        self.measures = True

    def messages_changed(self, start: int) -> None:
        """Note that messages from index ``start`` on have changed."""
        for base in self._bases:
            base.keep = min(base.keep, start)

    def write(self, what: CheckpointMeta, state: Mapping[str, Any], messages: Messages) -> int:
        """Append the snapshot; returns its LSN. Durable with the next commit of the log."""
        changed = self._state.changes(state)
        begins = INDEX_WHOLE if self.generation.first > 1 else 1
        index = self._bases[-1].index + 1 if self._bases else begins
        bases = [base for base in self._bases if base.index <= index & (index - 1)]
        base = bases[-1] if bases else Base(0, 0, 0, None)
        generation, recorded = self.generation, self.generation.size + what.bytes_since
        results = None if what.tool_results is None else pack(what.tool_results, "tool_results")
        rest = messages.digest(), b"" if results is None else digest(results)
        digests = self._state.digests(state, changed)
        found = checksum(what.run_id, what.step, digests, rest)
        if what.checksum not in ("", found):
            raise RecoveryError(
                f"checkpoint {what.checkpoint_id!r} was changed after its checksum was computed; "
                "nothing was saved. Make a new Checkpoint from the values."
            )
        plain: dict[str, Plain] = {
            "version": VERSION,
            "checkpoint_id": what.checkpoint_id or f"{what.run_id}-{what.step:06d}",
            "run_id": what.run_id,
            "step": what.step,
            "timestamp": what.timestamp,
            "recoveries": what.recoveries,
            "prologue": list(what.prologue),
            "index": index,
            "bases": [base.lsn for base in bases],
            "keep": base.keep,
            "checksum": found,
        }
        gone = self._state.gone_of(base, changed)
        parts = {
            "messages": _messages_from(messages, base.keep),
            "state": self._state.packed(state, changed, base),
            "tool_results": PACKED_NONE if results is None else results,
            "carried": pack(dict(what.carried), "carried"),
        }
        if what.timestamp_text is not None:
            plain["timestamp_text"] = what.timestamp_text
        if what.removed != ():
            removed = None if what.removed is None else list(what.removed)
            parts["removed"] = pack(removed, "removed")
        if gone is not None:
            parts["gone"] = pack(list(gone), "gone")
        if self.measures:
            measured = [generation.first, recorded, list(generation.prologue)]
            parts["generation"] = pack(measured, "generation")
        packed = pack_map(parts, plain)
        try:
            lsn = self._log.append_snapshot(packed)
        except RefusedValueError as exc:  # too large
            raise RefusedValueError("checkpoint", exc.reason) from None
        for i in range(base.keep, len(messages)):
            messages.refs[i] = messages.refs[i] or Ref(lsn, i - base.keep)
        self._state.remember(state, changed, lsn, bases)
        self._bases = [*bases, Base(index, lsn, len(messages))]
        if self.measures:
            self.generation = replace(generation, size=recorded + len(packed))
        return lsn
