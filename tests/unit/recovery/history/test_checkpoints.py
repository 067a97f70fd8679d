"""Checkpoints hold what changed, and restore all that was."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest

from eventlog import EventLog, Record, RefusedValueError, Snapshot
from eventlog.files.memory import MemoryFiles
from recovery.history import state_delta as state_module
from recovery.history import write_checkpoint as writer_module
from recovery.history.inventory import stored_checkpoints
from recovery.history.restore_checkpoint import (
    BrokenCheckpointError,
    Generation,
    Restored,
    prologue_in,
    restore,
)
from recovery.history.state_delta import pack_state
from recovery.history.write_checkpoint import CheckpointMeta, CheckpointWriter
from recovery.journal.messages import Messages
from recovery.values.pack import pack, unpack
from recovery.values.types import Ref


class Source:
    """A log that counts what is fetched from it, and can lose records."""

    def __init__(self, log: EventLog) -> None:
        self.log, self.fetches, self.lost = log, 0, set[int]()

    def fetch(self, lsns: set[int]) -> dict[int, Record]:
        self.fetches += 1
        return {lsn: r for lsn, r in self.log.fetch(lsns).items() if lsn not in self.lost}

    def newest(self) -> Snapshot:
        return next(self.log.snapshots())

    def restored(self) -> Restored:
        return restore(self.fetch, self.newest())


@pytest.fixture
def log() -> Iterator[EventLog]:
    with EventLog.open("log", "none", files=MemoryFiles()) as log:
        yield log


def recorded(log: EventLog, writer: CheckpointWriter) -> Messages:
    """Messages that are in the log before any snapshot, as an agent's are."""

    def record(start: int, stop: int, packed: list[bytes]) -> list[Ref | None]:
        lsn = log.append("messages", {"new": [unpack(one) for one in packed]})
        return [Ref(lsn, i) for i in range(len(packed))]

    messages = Messages(record)
    messages.on_change = writer.messages_changed
    return messages


def values(restored: Restored) -> list[Any]:
    return [unpack(one) for one in restored.messages]


def size(snapshot: Snapshot) -> int:
    return len(snapshot.packed)


@pytest.mark.parametrize("in_log", [True, False])
def test_bytes_per_checkpoint_stay_constant_while_the_conversation_grows(log, in_log):
    sizes, chain = list[int](), list[int]()

    class Sink:
        def append_snapshot(self, state: Any) -> int:
            sizes.append(len(state))
            return int(log.append_snapshot(state))

    writer = CheckpointWriter(Sink())
    messages = recorded(log, writer) if in_log else Messages()
    messages.on_change = writer.messages_changed
    source = Source(log)
    for step in range(1, 1001):
        messages.extend({"role": "user", "content": f"{step} {i} " + "x" * 200} for i in (1, 2))
        writer.write(CheckpointMeta("run", step, 0.0), {"at": step, "same": "y" * 2000}, messages)
        if step % 333 == 0 or step in (511, 512, 1000):
            source.fetches = 0
            assert values(source.restored()) == messages
            chain.append(source.fetches)
    early, late = sum(sizes[100:300]) / 200, sum(sizes[800:]) / 200
    assert late < 1.3 * early
    # A message is named again in at most log2(i) snapshots, with a few bytes each time.
    assert sum(sizes) < 1000 * (2 * (0 if in_log else 230) + 2 * 10 * 12 + 400) + 2000
    assert max(chain) <= 10 + 2  # log2(1000) snapshots, the messages, the state


def test_a_checkpoint_holds_only_the_state_that_changed(log):
    writer, messages, source = CheckpointWriter(log), Messages(), Source(log)
    state: dict[str, Any] = {"big": "x" * 5000, "n": 0}
    for n in range(5):
        state["n"] = n
        writer.write(CheckpointMeta("run", n, 0.0), state, messages)
        assert (size(source.newest()) > 5000) == (n == 0)
        assert source.restored().state == state
    state["big"] = "y" * 5000
    writer.write(CheckpointMeta("run", 5, 0.0), state, messages)
    assert size(source.newest()) > 5000
    state["big"] = "x" * 5000  # as it once was: written again, and right
    writer.write(CheckpointMeta("run", 6, 0.0), state, messages)
    assert source.restored().state == state


@pytest.mark.parametrize(
    ("value", "change"),
    [
        ([1], lambda value: value.append(2)),
        ({"a": [1]}, lambda value: value["a"].append(2)),
        ([1], lambda value: value.__setitem__(0, 1.0)),
        ([1], lambda value: value.__setitem__(0, True)),
        (bytearray(b"a"), lambda value: value.append(1)),
        (([1], "x"), lambda value: value[0].clear()),
    ],
)
def test_a_value_that_was_changed_in_place_is_written_again(log, value, change):
    writer, source = CheckpointWriter(log), Source(log)
    state = {"x": value, "y": 1}
    for step in range(3):
        writer.write(CheckpointMeta("run", step, 0.0), state, Messages())
        assert pack(source.restored().state, "") == pack(state, "")
        if step == 1:
            change(value)


@pytest.mark.parametrize(("old", "new"), [(1, True), (1, 1.0), (0.0, -0.0), ("1", b"1")])
def test_a_value_that_equals_the_old_one_in_another_type_is_written_again(log, old, new):
    writer, source = CheckpointWriter(log), Source(log)
    for step, value in enumerate([old, old, new, new]):
        writer.write(CheckpointMeta("run", step, 0.0), {"x": value}, Messages())
        assert repr(source.restored().state) == repr({"x": value})


def test_a_checkpoint_packs_what_may_have_changed(log, monkeypatch):
    """Text and numbers that are the same objects are not packed again, nor are messages."""
    packed = list[str]()

    def counted(value: Any, path: str) -> Any:
        # Neither where a message is, nor that no key is gone.
        if not isinstance(value, Ref) and path != "gone":
            packed.append(path)
        return pack(value, path)

    monkeypatch.setattr(state_module, "pack", counted)
    monkeypatch.setattr(writer_module, "pack", counted)
    writer = CheckpointWriter(log)
    messages = recorded(log, writer)
    state: dict[str, Any] = {f"k{i}": f"value {i}" * 100 for i in range(100)} | {"list": [1]}
    counts = list[int]()
    for step in range(1, 200):
        messages.extend([{"role": "user", "content": f"{step}"}] * 10)
        state[f"k{step % 100}"] = f"step {step}"
        packed.clear()
        writer.write(CheckpointMeta("run", step, 0.0), state, messages)
        assert sum(path.startswith("state.") for path in packed) == (101 if step == 1 else 2)
        counts.append(len(packed))
    assert set(counts[1:]) == {counts[1]}


@pytest.mark.parametrize("key", [1, b"x", "\ud800"])
def test_a_key_that_is_no_text_is_refused(log, key):
    writer = CheckpointWriter(log)
    with pytest.raises(RefusedValueError, match="keys of a state are str"):
        writer.write(CheckpointMeta("run", 1, 0.0), {"a": 1, key: 1}, Messages())
    with pytest.raises(RefusedValueError, match="keys of a state are str"):
        pack_state({key: 1})
    writer.write(CheckpointMeta("run", 1, 0.0), {"a": 1}, Messages())


def test_the_order_of_keys_is_kept(log, rng: random.Random):
    writer, messages, source = CheckpointWriter(log), Messages(), Source(log)
    orders = [["b", "a", "c"], ["c", "b", "a"], ["a", "c"], ["a", "c", "b"], ["c", "d", "b", "a"]]
    orders += [rng.sample("abcdef", rng.randrange(7)) for _ in range(60)]
    for step, order in enumerate(orders, 1):
        state = {key: key * rng.randrange(1, 3) for key in order}
        writer.write(CheckpointMeta("run", step, 0.0), state, messages)
        restored = source.restored()
        assert list(restored.state.items()) == list(state.items())
        if rng.random() < 0.2:
            writer = CheckpointWriter(log, restored)


def test_keys_whose_values_stand_are_not_named_again(log):
    writer, messages, source = CheckpointWriter(log), Messages(), Source(log)
    sizes = []
    for step in range(1, 301):
        state: dict[str, Any] = {f"key {n} of the state": "x" * 20 for n in range(step)}
        state["now and then"] = 1
        if step % 3:
            del state["now and then"]
        writer.write(CheckpointMeta("run", step, 0.0), state, messages)
        sizes.append(size(source.newest()))
        if step % 97 == 0:
            found = source.restored()
            assert found.state == state
            writer = CheckpointWriter(log, found)
    # All are named where an earlier checkpoint is not the base, which is at powers of two.
    assert sum(sizes[200:]) < 1.4 * sum(sizes[100:200])
    assert sorted(sizes[200:])[75] < 600


def test_a_state_that_an_older_library_said_whole_is_restored(log):
    writer, messages, source = CheckpointWriter(log), Messages(), Source(log)
    states: list[dict[str, Any]] = [
        {"a": 1, "b": [1]},
        {"a": 1, "b": [1], "c": 3},
        {"b": [1], "c": 4},
    ]
    for step, state in enumerate(states, 1):
        writer.write(CheckpointMeta("run", step, 0.0), state, messages)
        newest = unpack(source.newest().packed)
    # Version 1: each key by its value or where that is; the base is there for the messages.
    body = {**newest, "version": 1, "state": {"c": [4], "b": 1}}
    del body["gone"]
    source.log.append_snapshot(body)
    assert source.restored().state == {"b": [1], "c": 4}
    writer = CheckpointWriter(log, source.restored())
    states = [{"b": [1], "c": 4}, {"c": 4, "d": 5}, {"d": 5, "e": 6}]
    for step, state in enumerate(states, 4):
        writer.write(CheckpointMeta("run", step, 0.0), state, messages)
        assert source.restored().state == state


def test_any_changes_of_messages_and_state_are_restored(log, rng: random.Random):
    writer, source = CheckpointWriter(log), Source(log)
    messages = recorded(log, writer)
    state: dict[str, Any] = {}
    written = []
    for step in range(1, 80):
        for _ in range(rng.randrange(3)):
            match rng.randrange(5):
                case 0 | 1:
                    messages.append({"n": rng.randrange(1000)})
                case 2:
                    at = rng.randrange(len(messages) + 1)
                    messages[at : at + rng.randrange(3)] = [rng.randrange(9)] * rng.randrange(3)
                case 3 if messages:
                    del messages[rng.randrange(len(messages))]
                case _:
                    state[rng.choice("abcdef")] = rng.randrange(3)
        if rng.random() < 0.1:
            state.pop(rng.choice("abcdef"), None)
        if rng.random() < 0.05:
            messages.clear()
        lsn = writer.write(CheckpointMeta("run", step, 0.0), state, messages)
        written.append((lsn, dict(state), list(messages)))
        if rng.random() < 0.1:  # another process goes on from what it finds
            found = source.restored()
            writer = CheckpointWriter(log, found)
            again = recorded(log, writer)
            again.on_change = None
            again.restore(found.messages, found.refs)
            again.on_change = writer.messages_changed
            messages, state = again, found.state
    for snapshot, (lsn, then, conversation) in zip(log.snapshots(), reversed(written), strict=True):
        found = restore(source.fetch, snapshot)
        assert (found.lsn, found.state, values(found)) == (lsn, then, conversation)


@pytest.mark.parametrize(
    ("state", "where"),
    [
        ({"a": {"b": [1, {len}]}}, "state.a.b[1][0]: builtin"),
        ({1: "a"}, "state[1]: keys of a state are str"),
    ],
)
def test_state_that_cannot_be_carried_is_refused_and_nothing_written(log, state, where):
    writer = CheckpointWriter(log)
    with pytest.raises(RefusedValueError) as caught:
        writer.write(CheckpointMeta("run", 1, 0.0), state, Messages())
    assert str(caught.value).startswith(where)
    assert log.last_lsn == 0
    writer.write(CheckpointMeta("run", 1, 0.0), {"a": 1}, Messages())
    assert Source(log).restored().state == {"a": 1}


# -- what is broken


@pytest.fixture
def source(log) -> Source:
    writer = CheckpointWriter(log)
    messages = recorded(log, writer)
    for step in range(1, 8):
        messages.append({"step": step})
        writer.write(CheckpointMeta("run", step, 0.0), {"at": step, "same": "y"}, messages)
    return Source(log)


def test_every_record_that_is_lost_is_noticed(source):
    whole = source.restored()
    for lsn in range(1, source.newest().lsn):
        source.lost = {lsn}
        try:
            found = source.restored()
        except BrokenCheckpointError as exc:
            assert f"checkpoint at LSN {whole.lsn}" in str(exc)
            assert f"LSN {lsn}, which is damaged or missing" in str(exc)
        else:  # it was not needed
            assert (found.state, values(found)) == (whole.state, values(whole))
    source.lost = {2}  # the first snapshot holds the state that never changed
    with pytest.raises(BrokenCheckpointError):
        source.restored()


def forged(source: Source, **changes: Any) -> Snapshot:
    newest = source.newest()
    return Snapshot(newest.lsn, "snapshot", 0, pack(unpack(newest.packed) | changes, ""))


@pytest.mark.parametrize(
    "changes",
    [
        {"version": 3},
        {"version": None},
        {"step": 3},
        {"run_id": "other"},
        {"checksum": "0" * 32},
        {"checksum": None},
        {"state": {}},
        {"state": {"at": [8], "same": 2}},
        {"state": {"at": 2, "same": 2}},
        {"state": {"at": [], "same": 2}},
        {"state": {"at": 10**9, "same": 2}},
        {"state": {"at": 1, "same": 2}},
        {"state": []},
        {"messages": []},
        {"messages": [Ref(1, 5)]},
        {"messages": [Ref(10**9, 0)]},
        {"messages": None},
        {"keep": 0},
        {"keep": -3},
        {"keep": "x"},
        {"bases": [10**9]},
        {"bases": [-1]},
        {"bases": [1]},
        {"bases": ["x"]},
        {"bases": [14]},
        {"prologue": [[]]},
        {"prologue": None},
        {"tool_results": [1]},
        {"gone": ["same"]},
        {"gone": [1]},
        {"gone": 1},
        {"gone": None},
    ],
    ids=str,
)
def test_a_checkpoint_that_is_not_what_it_says_is_not_restored(source, changes):
    with pytest.raises(BrokenCheckpointError, match="checkpoint at LSN 14: "):
        restore(source.fetch, forged(source, **changes))


@pytest.mark.parametrize("index", [0, 1, 1 << 48])
def test_a_checkpoint_out_of_order_is_not_restored(source, index):
    with pytest.raises(BrokenCheckpointError, match=f"LSN 14: its number is {index}, out of order"):
        restore(source.fetch, forged(source, index=index))


@pytest.mark.parametrize(
    "generation", [1, [1, 0], [0, 0, []], [15, 0, []], [1, -1, []], [2, 0, [1]], [1, 0, [14]]]
)
def test_a_generation_that_makes_no_sense_is_not_restored(source, generation):
    with pytest.raises(BrokenCheckpointError, match="LSN 14: its generation makes no sense"):
        restore(source.fetch, forged(source, generation=generation))
    assert restore(source.fetch, forged(source, generation=[1, 0, [1]])).generation.size > 0


@pytest.mark.parametrize("field", ["version", "bases", "messages", "state", "checksum", "index"])
def test_a_checkpoint_without_a_field_is_not_restored(source, field):
    newest = source.newest()
    body = unpack(newest.packed)
    del body[field]
    why = "version None is not known" if field == "version" else f"KeyError: '{field}'"
    with pytest.raises(BrokenCheckpointError, match=f"^checkpoint at LSN 14: {why}"):
        restore(source.fetch, Snapshot(newest.lsn, "snapshot", 0, pack(body, "")))


@pytest.mark.parametrize("packed", [b"", b"\xc1", pack([], ""), pack({"lives": 9}, "")])
def test_a_snapshot_of_somebody_else_is_not_restored(source, packed):
    with pytest.raises(BrokenCheckpointError):
        restore(source.fetch, Snapshot(14, "snapshot", 0, packed))


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ([], "is no portion"),
        ({"prologue": 1}, "is no portion"),
        ({"prologue": [7]}, "carries what is no record"),
        *(
            ({"prologue": [[1, "event", 7, b"x"], [lsn, "event", 7, b"y"]]}, says)
            for lsn, says in ((4, ""), (0, "carries what"), (5, "carries what"), ("1", "carries"))
        ),
    ],
)
def test_a_portion_that_makes_no_sense_is_not_read(body, says):
    portion: dict[int, Record] = {5: Snapshot(5, "snapshot", 0, pack(body, ""))}
    with pytest.raises(BrokenCheckpointError, match=f"^LSN 5 {says}") if says else nullcontext():
        found = prologue_in(lambda lsns: portion if lsns else {}, [1], Generation(5, 0, (5,)))
        assert found == {1: Record(1, "event", 7, b"x")}


def test_a_checkpoint_of_a_later_version_is_listed_and_why_it_is_of_no_use(source):
    lsn = source.log.append_snapshot({"version": 99})
    newest, *others = stored_checkpoints(source.log)
    assert len(others) == 7 and all(one.validity for one in others)
    size = len(source.newest().packed)
    assert str(newest) == (
        f"step ? (LSN {lsn}, {size} bytes): checkpoint at LSN {lsn}: version 99 is not known to "
        "this library"
    )


def test_a_checkpoint_that_is_too_large_is_refused_as_a_whole():
    class Full:
        def append_snapshot(self, state: Any) -> int:
            raise RefusedValueError("state", "99 bytes")

    with pytest.raises(RefusedValueError, match=r"^checkpoint: 99 bytes"):
        CheckpointWriter(Full()).write(CheckpointMeta("run", 1, 0.0), {}, Messages())


def test_a_message_is_only_taken_from_records_that_hold_messages(log):
    log.append("step", {"value": {"a": 1}, "new": [1], "messages": [1]})
    writer, messages = CheckpointWriter(log), Messages()
    messages.append({"a": 1})
    messages.refs[0] = Ref(1)
    writer.write(CheckpointMeta("run", 1, 0.0), {}, messages)
    with pytest.raises(BrokenCheckpointError, match=r"^checkpoint at LSN 2: LSN 1 .*no message"):
        Source(log).restored()


@pytest.mark.parametrize(
    ("lost", "said"),
    [({1, 3, 5, 7, 9}, "1, 3, 5, 7, 9"), ({*range(1, 12, 2)}, "1, 3, 5, 7, 9, ...")],
)
def test_a_list_of_checkpoints_names_some_of_what_they_need(source, monkeypatch, lost, said):
    there = [record for record in source.log.records(1) if record.lsn not in lost]
    monkeypatch.setattr(EventLog, "records", lambda *args, **options: iter(there))
    newest, *_ = stored_checkpoints(source.log)
    assert newest.validity.reason == f"it needs LSN {said}, which is damaged or missing"
    assert (newest.step, newest.lsn, newest.size) == (7, 14, size(source.newest()))
