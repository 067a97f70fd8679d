"""Seals what a run records that belongs to subjects.

A call belongs to the subject that its tool names (``@tool(subject=)``), else to that of the call
around it, else to that of the run. Its arguments, outcome and errors are sealed. A message, a value
of the state or a result is sealed if the run belongs to a subject, if it is marked by
``personal()``, or if it holds a value that was sealed, whole.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any

from eventlog import Packed
from recovery.errors import ForgottenError, RecoveryError, SubjectKeysError
from recovery.history.restore_checkpoint import Restored
from recovery.history.state_delta import pack_plain
from recovery.journal.encoding import SEALED
from recovery.journal.events import (
    AgentRaised,
    AttemptFailed,
    CallFailed,
    CallIntended,
    CallResolved,
    CallReturned,
    Event,
    RunFailed,
    RunFinished,
    RunStarted,
    SignalTaken,
    ValueRecorded,
)
from recovery.journal.redaction import NO_SECRETS, Secrets
from recovery.stores.subject_keys import SubjectKeys
from recovery.values.backrefs import walk_document
from recovery.values.pack import PACKED_NONE, pack, pack_map, unpack, unpack_map
from recovery.values.sealed import (
    Forgotten,
    KeyIds,
    Personal,
    Sealed,
    Subjects,
    all_keys,
    hiding,
    is_forgotten,
    key_ids,
    may_hold_sealed,
    pack_sealed,
    plain,
    sealed_data,
)
from recovery.values.types import digest

# A value of a subject is known again in another one if its packed size is at least this. Shorter
# ones, such as "active", are everywhere.
PART_SIZE_MIN = 16
PARTS_MAX = 4096  # that are known, the newest

_VALUE = {
    RunFinished: "result",
    ValueRecorded: "value",
    CallReturned: "value",
    SignalTaken: "value",
    CallResolved: "value",
}
# The events that may be sealed, and the field that says so in a run that has used no subject yet.
_MARKED = {
    **_VALUE,
    **dict.fromkeys((RunStarted, CallIntended), "subject"),
    **dict.fromkeys((AttemptFailed, CallFailed, RunFailed, AgentRaised), "sealed"),
}


class SubjectValues:
    """What one execution of a run knows of its subjects. Guarded by the run's mutex."""

    def __init__(self, sealed: dict[int, KeyIds] | None = None) -> None:
        self.keys: SubjectKeys | None = None
        self.run_id, self.run = "", KeyIds()
        self.texts = NO_SECRETS  # texts of subjects are removed from errors that are not sealed
        self.sealed = sealed or {}  # outcomes (LSNs) that are sealed
        self._calls: dict[int, KeyIds] = {}
        self._used: dict[str, bytes] = {}  # keys by subject
        self._again: dict[bytes, Packed] = {}  # sealed messages, by the digest of the plain ones
        self._parts: OrderedDict[bytes, KeyIds] = OrderedDict()
        self._state_keys: dict[str, KeyIds] = {}  # of values of the state that stay sealed
        self._state: dict[str, tuple[bytes, Packed]] = {}  # the same: digest, and sealed

    def open(self, run_id: str, backend: object) -> None:
        """Use the keys of a store."""
        found = getattr(backend, "subject_keys", None)
        self.run_id, self.keys = run_id, found if isinstance(found, SubjectKeys) else None

    def begin(self, started: RunStarted, texts: Secrets) -> None:
        """Set what is known once the run has a first record."""
        self.run, self.texts = keys_in(started.subject), texts
        if self.run and started.task is not None:
            self.note(pack(started.task, "task"), self.run)

    @property
    def is_used(self) -> bool:
        """Whether this execution knows of any value of a subject."""
        return bool(self._parts or self.run or self._calls or self._again)

    # -- who

    def ids_of(self, subject: str) -> KeyIds:
        """The id of the subject's key, which is made if there is none.

        ForgottenError if it was destroyed since this execution has used it: what the agent knows
        of the subject is to be forgotten, and not recorded under another key.
        """
        known = self._used.get(subject)
        if known is None:
            known = self._used[subject] = self._store().id_of(subject)
        elif self._store().has_forgotten(known):
            raise ForgottenError(self.run_id, "to record a value", (known,))
        return (known,)

    def has_key(self, subject: str) -> bool:
        """Whether the subject has a key, or had one that this execution has used."""
        return subject in self._used or self._store().known_id(subject) is not None

    def of_call(self, call: int) -> KeyIds:
        """The keys of the subject that a call (LSN) belongs to; none if it has no subject."""
        return self._calls.get(call, ())

    def check_known(self) -> None:
        """SubjectKeysError if the store has neither a key that a record names, nor destroyed it.

        A subject keeps the key that the run has used, also where it has another one in this store.
        """
        for one in {*self.run, *chain(*self._calls.values(), *self.sealed.values())}:
            if self.keys is None or not self.keys.knows(one):
                raise _missing(one, "what is recorded")
            if (name := self.keys.name_of(one)) is not None:
                self._used.setdefault(name, one)

    def call_digest(self, keys: KeyIds, found: bytes) -> bytes:
        """The digest of a subject's call: without the keys, no guess can be tested against it."""
        return self._held(self._store().digest(keys, found), keys)

    def note_call(self, lsn: int, subject: object) -> None:
        """Note to whom a recorded call belongs."""
        if keys := keys_in(subject):
            self._calls[lsn] = keys

    def _store(self) -> SubjectKeys:
        if self.keys is None:
            raise RecoveryError("this kind of store keeps no keys of subjects (subject_keys)")
        return self.keys

    # -- events

    def of_event(self, event: Event) -> Event:
        """The event as it is to be recorded."""
        name = _MARKED.get(type(event))
        if name is None:
            return event
        marked = type(getattr(event, name, None)) in (Subjects, Personal)
        return self._sealed(event) if marked or self.is_used else event

    def _sealed(self, event: Event) -> Event:
        match event:
            case RunStarted(subject=Subjects(keys=keys)):
                packed = _packed(event.task)
                if packed == PACKED_NONE or sealed_data(packed) is not None:
                    return event
                return replace(event, task=self.seal(packed, keys))
            case CallIntended(subject=Subjects(keys=keys)):
                if event.args is not None:
                    event = replace(event, args=self.seal(_packed(event.args), keys))
                return event
            case AttemptFailed() | CallFailed():
                return self._without_texts(event, self.of_call(event.call))
            case RunFailed() | AgentRaised():
                quoted = keys_in(event.sealed) or self.of_call(event.call)
                return self._without_texts(event, all_keys(self.run, quoted))
            case CallReturned() | CallResolved() | RunFinished() | ValueRecorded():
                return self._of_value(event)
        return event

    def recorded(self, lsn: int, event: Event) -> None:
        """Note where the event was recorded."""
        if not self.is_used and getattr(event, "subject", None) is None:
            return
        if isinstance(event, CallIntended):
            self.note_call(lsn, event.subject)
        elif isinstance(event, CallReturned | CallResolved):
            data = sealed_data(event.value) if type(event.value) is Packed else None
            if data is not None:
                self.sealed[lsn] = key_ids(data)

    def _of_value(self, event: Any) -> Event:
        name = _VALUE[type(event)]
        value, keys = getattr(event, name), self.of_call(getattr(event, "call", 0)) or self.run
        if type(value) is Personal:
            keys, value = all_keys(keys, self.ids_of(value.subject)), value.value
        packed = _packed(value)
        if packed == PACKED_NONE or sealed_data(packed) is not None:
            return replace(event, **{name: packed})  # type: ignore[no-any-return]
        if keys := keys or self._found_in(packed):
            self.note(packed, keys)
            packed = self.seal(packed, keys)
        return replace(event, **{name: packed})  # type: ignore[no-any-return]

    def _without_texts(self, event: Any, keys: KeyIds) -> Event:
        if not keys:
            return event  # type: ignore[no-any-return]
        names = [name for name in SEALED if getattr(event, name, None) is not None]
        hidden = pack_map({name: _packed(getattr(event, name)) for name in names})
        empty: dict[str, Any] = dict.fromkeys(names)
        empty |= {name: "" for name in ("message", "traceback") if name in names}
        return replace(event, **empty, sealed=self.seal(hidden, keys))  # type: ignore[no-any-return]

    def seal(self, packed: bytes, keys: KeyIds) -> Packed:
        """A packed value under these keys."""
        return pack_sealed(self._held(self._store().seal(keys, packed), keys))

    def _held(self, made: bytes | None, keys: KeyIds) -> bytes:
        if made is None:
            raise ForgottenError(self.run_id, "to record a value", keys)
        return made

    # -- messages and state

    def mark(self, subject: str, packed: Packed) -> Packed:
        """A message that is marked, sealed."""
        return self._again_as(packed, all_keys(self.run, self.ids_of(subject)))

    def message(self, packed: bytes) -> bytes:
        """A message as it is to be recorded: sealed if it belongs to a subject."""
        if not (self.run or self._again or self._parts) or sealed_data(packed) is not None:
            return packed
        known = self._again.get(digest(packed))
        if known is not None:
            return known
        keys = self.run or self._found_in(packed)
        return self._again_as(packed, keys) if keys else packed

    def _again_as(self, packed: bytes, keys: KeyIds) -> Packed:
        sealed = self._again[digest(packed)] = self.seal(packed, keys)
        self.note(packed, keys)
        return sealed

    def mark_state(self, key: str, value: Personal) -> Any:
        """Note that the value of this key of the state is sealed from now on; the plain value."""
        self._state_keys[key] = all_keys(self.run, self.ids_of(value.subject))
        return value.value

    def state_value(self, key: str, value: Any) -> Packed:
        """A value of the state, packed as a checkpoint has it."""
        keys, pack_it = self._state_keys.get(key) or self.run, partial(pack_plain, key, value)
        packed = hiding(pack_it, f"state.{key}") if keys else pack_it()
        if not (keys or self._parts) or sealed_data(packed) is not None:
            return packed
        keys = keys or self._found_in(packed)
        if not keys:
            return packed
        now, known = digest(packed), self._state.get(key)
        if known is None or known[0] != now:
            self._state_keys[key] = keys
            self.note(packed, keys)
            known = self._state[key] = now, self.seal(packed, keys)
        return known[1]

    def restored(self, messages: Iterable[bytes], state: dict[str, Packed]) -> None:
        """Know the sealed values of a checkpoint again."""
        for packed in messages:
            if (data := sealed_data(packed)) is not None and (found := plain(packed)) is not packed:
                self._again[digest(found)] = Packed(packed)
                self.note(found, key_ids(data))
        for key, packed in state.items():
            if (data := sealed_data(packed)) is not None and (found := plain(packed)) is not packed:
                self._state_keys[key] = key_ids(data)
                self._state[key] = digest(found), packed
                self.note(found, key_ids(data))

    # -- the same values elsewhere

    def note(self, packed: bytes, keys: KeyIds) -> None:
        """Know this value of subjects, and its parts, again in other values."""

        def take(start: int, stop: int) -> bool:
            if stop - start >= PART_SIZE_MIN:
                found = digest(packed[start:stop])
                self._parts[found] = all_keys(self._parts.get(found, ()), keys)
                self._parts.move_to_end(found)
            return False

        walk_document(packed, take, PART_SIZE_MIN)
        while len(self._parts) > PARTS_MAX:
            self._parts.popitem(last=False)
        if self.texts is not NO_SECRETS:
            self.texts.add_personal(unpack(packed))

    def note_error(self, failed: CallFailed, keys: KeyIds) -> None:
        """Know what an exception of subjects says again, in messages and in other errors."""
        for one in _said({name: getattr(failed, name) for name in SEALED}):
            self.note(_packed(one), keys)

    def _found_in(self, packed: bytes) -> KeyIds:
        """The keys of all known values that this one holds."""
        found = KeyIds()
        if not self._parts:
            return found

        def take(start: int, stop: int) -> bool:
            nonlocal found
            keys = self._parts.get(digest(packed[start:stop]))
            if keys is not None:
                found = all_keys(found, keys)
            return False

        walk_document(packed, take, PART_SIZE_MIN)
        return found


def _said(error: dict[str, Any]) -> Iterator[Any]:
    """What a recorded exception says, without the names of its fields and types."""
    found = {name: unpack(one) if type(one) is Packed else one for name, one in error.items()}
    yield from (found.get("message"), found.get("args"))
    yield from (found.get("attributes") or {}).values()
    for one in (*(found.get("group") or ()), *(found.get("cause") or ())):
        yield from _said(one)


def _packed(value: Any) -> Packed:
    return value if type(value) is Packed else pack(value, "value")


def keys_in(subject: object) -> KeyIds:
    """The keys that the field ``subject`` of an event names."""
    return subject.keys if isinstance(subject, Subjects) else ()


def sealed(backend: object, run_id: str, packed: Packed, keys: KeyIds) -> Packed:
    """A packed value under these keys; ForgottenError if one of them was destroyed."""
    return packed if packed == PACKED_NONE else values_of(run_id, backend).seal(packed, keys)


def values_of(run_id: str, backend: object) -> SubjectValues:
    """The values of subjects of a run that is not executed."""
    values = SubjectValues()
    values.open(run_id, backend)
    return values


def is_personal(events: Iterable[Event]) -> bool:
    """Whether values of these events, which a status may quote, belong to a subject."""
    for event in events:
        if getattr(event, "subject", None) or getattr(event, "sealed", None):
            return True
        values = (getattr(event, name, b"") for name in ("value", "new", "result"))
        if any(type(one) is Packed and may_hold_sealed(one) for one in values):
            return True
    return False


def sealed_outcome(packed: bytes) -> KeyIds:
    """The keys of the outcome that a record holds; none if it is not sealed."""
    if not may_hold_sealed(packed):
        return ()
    data = sealed_data(unpack_map(packed).get("value", b""))
    return key_ids(data) if data is not None else ()


def check_restored(
    run_id: str, started: RunStarted | None, restored: Restored | None, serves: bool
) -> None:
    """``check_readable`` of the task, and of all that a checkpoint has restored. Raises also if the
    run as a whole belongs to a subject that was forgotten."""
    if started is not None:
        if is_forgotten(keys := keys_in(started.subject)):
            raise ForgottenError(run_id, "its records", keys)
        check_readable(started.task, run_id, "its task", serves)
    if restored is not None:
        for one in restored.messages:
            if sealed_data(one) is not None:
                check_readable(unpack(one), run_id, "a message", serves)
        for key in restored.sealed:
            check_readable(restored.state[key], run_id, f"run.state[{key!r}]", serves)


def check_readable(value: Any, run_id: str, what: str, serves: bool) -> None:
    """Raise if a value that an agent is to get is not there: ForgottenError, unless the agent
    ``serves`` what is forgotten; SubjectKeysError if a key of it is unknown here."""
    if isinstance(value, Forgotten):
        if not serves:
            raise ForgottenError(run_id, what, value.keys)
    elif isinstance(value, Sealed):
        raise _missing(value.keys[0], what)


def _missing(key: bytes, what: str) -> SubjectKeysError:
    return SubjectKeysError(
        f"does not have the key {key.hex()[:8]} of {what}, and does not say that it was destroyed",
        "Put back the document that belongs to these runs (in a directory of runs: .subjects)",
    )
