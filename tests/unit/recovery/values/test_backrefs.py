"""Messages that hold what outcomes hold: recorded by reference, restored as they were."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventlog import Packed, Record
from eventlog.testing import SimulatedDisk
from recovery import CheckpointStore, RecoverableAgent, SyncRun, tool
from recovery.errors import DamagedRunError
from recovery.inspect.compare import compare
from recovery.inspect.follow import events
from recovery.journal.encoding import encode
from recovery.journal.events import CallReturned, MessagesChanged
from recovery.ops.fork import fork
from recovery.reports import Comparison
from recovery.stores.log_store import LogStore
from recovery.stores.memory import MemoryStore
from recovery.values import backrefs as parts
from recovery.values.backref_index import BackrefIndex
from recovery.values.backrefs import CompositeMessage, RecordedValues, parse_reference, resolve
from recovery.values.frozen import FrozenDict, FrozenList
from recovery.values.pack import EXT_PARTS, pack, pack_message, unpack
from recovery.values.types import Ref
from tests.unit.recovery.ops.test_fork import damage

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text() | st.integers(0, 9) | st.binary(max_size=3), inner, max_size=4)
    ),
    max_leaves=12,
)
TEXT = "what the model said, and the tool answered; " * 40


class Records:
    """Outcomes at LSN 10, 20, ...; counts how often they are read."""

    def __init__(self, *values: Any) -> None:
        self.fetches = 0
        self.held: dict[int, Record] = {}
        for i, value in enumerate(values):
            self.add(CallReturned(1, value), 10 * (i + 1))

    def add(self, event: Any, lsn: int) -> None:
        kind, body = encode(event)
        self.held[lsn] = Record(lsn, kind, 0, body)

    def fetch(self, lsns: set[int]) -> dict[int, Record]:
        self.fetches += 1
        return {lsn: self.held[lsn] for lsn in lsns if lsn in self.held}


def remembering(*values: Any) -> BackrefIndex:
    outcomes = BackrefIndex(0)
    for i, value in enumerate(values):
        outcomes.remember(pack(value, ""), 10 * (i + 1))
    return outcomes


def there_and_back(message: Any, *values: Any) -> CompositeMessage | Ref | None:
    """What is recorded for a message; it is read back as it was, byte for byte."""
    packed = pack_message(message, "")
    found = remembering(*values).reference_for(packed)
    if found is not None:
        recorded = pack(found, "")
        assert recorded == pack(found, "")
        assert parse_reference(recorded) == unpack(recorded) == found
        assert resolve(RecordedValues(Records(*values).fetch), [recorded])[0] == [packed]
    return found


# -- what is found in a message


@pytest.mark.parametrize(
    "message",
    [
        {"role": "tool", "tool_call_id": "call_1", "content": TEXT},
        {"role": "user", "content": [{"type": "tool_result", "content": TEXT}]},
        {"role": "user", "content": [{"type": "tool_result", "content": [{"text": TEXT}]}, "x"]},
        ["x" * 100, TEXT, TEXT, {"a": TEXT}],
        [TEXT],
    ],
    ids=range(5),
)
def test_a_message_that_holds_an_outcome_is_recorded_by_reference(message: Any) -> None:
    found = there_and_back(message, TEXT)
    assert isinstance(found, CompositeMessage)
    assert found.lsns == {10}
    assert len(pack(found, "")) < 300


def test_a_message_that_is_or_holds_a_part_of_an_outcome_is_recorded_by_reference() -> None:
    message = {"role": "assistant", "content": TEXT, "tool_calls": [{"id": "a" * 100, "x": 1.5}]}
    response = {"id": "r", "choices": [{"index": 0, "message": message}], "usage": {"n": 7}}
    for appended in (message, {"role": "assistant", "content": message["content"]}):
        found = there_and_back(appended, response)
        assert isinstance(found, CompositeMessage)
        assert len(pack(found, "")) < 60
    assert there_and_back(response, response) == Ref(10)


def test_parts_of_several_outcomes_stand_in_one_message() -> None:
    values = [f"{i} {TEXT}" for i in range(5)]
    found = there_and_back([{"content": value} for value in reversed(values)], *values)
    assert isinstance(found, CompositeMessage)
    assert found.lsns == {10, 20, 30, 40, 50}


def test_equal_values_of_other_types_are_not_taken_for_each_other() -> None:
    ones = [1] * 100
    for other in ([1.0] * 100, [True] * 100):
        assert there_and_back({"content": other}, ones) is None
    assert there_and_back({"content": b"x" * 100}, "x" * 100) is None


@given(st.data())
def test_any_message_of_any_outcomes_is_read_back_byte_for_byte(data: st.DataObject) -> None:
    values: list[Any] = data.draw(st.lists(VALUES | st.text(min_size=70, max_size=90), max_size=4))
    values += [(value, "in a tuple " * 9) for value in values[:1]]
    known = st.sampled_from([*values, TEXT])
    part = st.recursive(
        known | VALUES,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    )
    there_and_back(data.draw(part), *values, TEXT)


def test_looking_into_a_large_document_is_bounded() -> None:
    """The first values are looked at, however many there are."""
    seen = list[tuple[int, int]]()

    def take(start: int, stop: int) -> bool:
        seen.append((start, stop))
        return False

    parts.walk_document(pack([["x" * 100] * 1000] * 100, ""), take)
    assert 100 < len(seen) <= parts.WALKED_MAX + 1


def test_what_is_remembered_is_bounded() -> None:
    outcomes = BackrefIndex(0)
    for i in range(2000):
        outcomes.remember(pack({"a": f"{i} " * 200, "b": [f"{i}" * 100]}, ""), i + 1)
        assert outcomes._fresh_size <= parts.FRESH_SIZE_MAX
    assert isinstance(outcomes.reference_for(pack(["1999 " * 200], "")), CompositeMessage)
    assert outcomes.reference_for(pack(["1 " * 200], "")) is None
    assert len(outcomes._whole) <= parts.WHOLE_MAX
    assert len(outcomes._inner) <= parts.INNER_MAX


# -- reading


def test_reading_takes_two_reads_however_many_messages() -> None:
    records = Records(*(f"{i} {TEXT}" for i in range(50)))
    outcomes = remembering(*(f"{i} {TEXT}" for i in range(50)))
    messages = [{"role": "tool", "content": f"{i} {TEXT}"} for i in range(50)]
    new = [pack(outcomes.reference_for(pack(one, "")), "") for one in messages]
    for i, one in enumerate(new):
        records.add(MessagesChanged(i, i, [unpack(one)]), 1000 + i)
    found, borrowed = resolve(RecordedValues(records.fetch), [Ref(1000 + i) for i in range(50)])
    assert [unpack(one) for one in found] == messages
    assert borrowed == outcomes.referenced_size == 50 * len(pack(f"1 {TEXT}", "")) + 40
    assert records.fetches == 2


def piece(*numbers: Any) -> Packed:
    return Packed(msgpack.packb(msgpack.ExtType(EXT_PARTS, msgpack.packb(numbers))))


FORGED = [
    piece(),
    piece([1, 2]),
    piece([10, 5, 5]),
    piece([10, -1, 5]),
    piece([0, 0, 5]),
    piece("x"),
    piece([10, 0, True]),
    piece([10, 0, 1 << 62]),
    piece([99, 0, 1]),
    piece([10, 0, 4000]),
    piece(*[[10, 0, 100]] * 700_000),
    piece([30, 0, 1]),
    piece([[10, 0, 1]]),
    Packed(b"\xc7\x05\x17\x91\x93"),
    Packed(b"\xd4\x17\xc1"),
    Packed(b"\xc9\xff\xff\xff\xff\x17"),
]


@pytest.mark.parametrize("forged", FORGED, ids=range(len(FORGED)))
def test_forged_parts_are_an_error_of_ours(forged: Packed) -> None:
    records = Records("x" * 100, piece([10, 0, 100]))
    kind, body = encode(MessagesChanged(0, 0, []))
    records.held[30] = Record(30, kind, 0, body)
    with pytest.raises(ValueError, match=r"."):
        resolve(RecordedValues(records.fetch), [forged])


def test_parts_are_not_looked_into_for_parts() -> None:
    """What an outcome holds is its tool's business, and no circle is followed."""
    inner = unpack(piece([20, 0, 5]))
    records = Records(inner, [inner] * 5)
    found, _ = resolve(RecordedValues(records.fetch), [Ref(10), piece([20, 0, 3])])
    assert found[1] == pack([inner] * 5, "")[:3]
    assert records.fetches <= 2


def test_a_small_log_does_not_become_a_conversation_of_gigabytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(parts, "BORROWED_MAX", 1 << 20)
    records = Records("x" * 10_000)
    with pytest.raises(ValueError, match="take 10000000 bytes from elsewhere"):
        resolve(RecordedValues(records.fetch), [piece([10, 0, 10_000]) for _ in range(1000)])


def test_no_more_is_borrowed_than_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recovery.values.backref_index.BORROWED_MAX", 3 * len(TEXT))
    outcomes = remembering(TEXT)
    found = [outcomes.reference_for(pack({"content": TEXT, "n": i}, "")) for i in range(5)]
    assert [one is not None for one in found] == [True, True, False, False, False]
    # So it is for the process that goes on, from what the checkpoint's messages borrow.
    assert BackrefIndex(3 * len(TEXT)).reference_for(pack([TEXT], "")) is None


# -- in runs


@tool(after_crash="retry")
def ask(n: int) -> dict[str, Any]:
    said = {"role": "assistant", "content": f"{n} said {TEXT[:1400]}", "when": (n, 2.0)}
    return {"id": n, "message": said, "usage": [1, 2]}


@tool
def act(n: int) -> str:
    return f"{n} done {TEXT} "


dying: set[int] = set()


class Died(BaseException):
    pass


def agent(run: SyncRun) -> Any:
    run.messages.append({"role": "user", "content": run.task})
    for step in run.steps():
        run.messages.append(run.call(ask, step)["message"])
        done = run.call(act, step)
        run.messages += [{"role": "tool", "n": step, "content": done}]
        if step in dying:
            dying.discard(step)
            raise Died
        if step == 8:
            return list(run.messages)


EXPECTED = [{"role": "user", "content": "otters"}] + [
    message
    for n in range(1, 9)
    for message in (
        {"role": "assistant", "content": f"{n} said {TEXT[:1400]}", "when": (n, 2.0)},
        {"role": "tool", "n": n, "content": f"{n} done {TEXT} "},
    )
]


def recovered(store: CheckpointStore, run_id: str = "run", every: int = 3) -> Any:
    return RecoverableAgent(agent, store, every).run_with_recovery_sync("otters", run_id)["result"]


@pytest.fixture(autouse=True)
def alive() -> Iterator[None]:
    dying.clear()
    yield


def test_restored_messages_are_frozen_and_have_the_digests_that_they_had() -> None:
    seen = list[tuple[bytes, Any]]()

    def looking(run: SyncRun) -> Any:
        for step in run.steps():
            run.messages.append({"role": "tool", "parts": [run.call(act, step)]})
            seen.append((run.messages.digest(), run.messages[0]))
            if len(seen) == 2:
                raise Died
            if step == 2:
                return step

    store = CheckpointStore()
    with pytest.raises(Died):
        RecoverableAgent(looking, store, 1).run_with_recovery_sync("t", "run")
    RecoverableAgent(looking, store, 1).run_with_recovery_sync("t", "run")
    assert seen[1] == seen[2]
    assert type(seen[2][1]) is FrozenDict
    assert type(seen[2][1]["parts"]) is FrozenList


def test_bytes_per_step_are_constant_and_a_little_more_than_the_news() -> None:
    """A reply and a tool's result, 3.4 KB of news in each step, a checkpoint every three."""
    steps: list[int] = []
    news = 1400 + 2000

    def conversing(run: SyncRun) -> Any:
        for step in run.steps():
            reply = run.call(reply_of, step)
            run.messages.append(reply)
            result = run.call(result_of, step, call_id=f"call_{step:024d}")
            run.messages.append(
                {"role": "tool", "tool_call_id": f"call_{step:024d}", "content": result}
            )
            run.state["n"] = step
            if step == 400:
                return step

    store = CheckpointStore()
    RecoverableAgent(conversing, store, 3).run_with_recovery_sync("t", "run")
    with store.backend.read("run") as reader:  # type: ignore[union-attr]
        for record in reader.records():
            if record.kind == "step":
                steps.append(0)
            if steps:
                steps[-1] += len(record.packed) + 48 + 24  # frame, payload around it, padding
    early, late = sum(steps[20:120]) / 100, sum(steps[300:399]) / 99
    assert late < 1.03 * early
    assert late < 1.36 * news


@tool(after_crash="retry")
def reply_of(step: int) -> dict[str, Any]:
    return {"role": "assistant", "content": f"{step:05d}" + "a" * 1350}


@tool(after_crash="retry")
def result_of(step: int) -> str:
    return f"{step:05d}" + "b" * 1990


def test_parts_are_shown_whole_to_who_reads_the_run() -> None:
    store = CheckpointStore()
    recovered(store)
    changes = [event.value for event in events(store, "run") if event.kind == "messages"]
    assert [message for new in changes for message in new] == EXPECTED
    recovered(store, "other")
    comparison = compare(store, "run", "other")
    assert isinstance(comparison, Comparison)
    assert comparison.alike


@pytest.mark.parametrize("at_step", [1, 2, 4, 6])
@pytest.mark.parametrize("every", [3, 100])
def test_a_fork_has_the_messages_of_its_run(at_step: int, every: int) -> None:
    store = CheckpointStore(MemoryStore())
    recovered(store, every=every)
    fork(store, "run", "child", at_step=at_step)
    assert recovered(store, "child", every) == EXPECTED
    assert compare(store, "run", "child").alike


def test_a_fork_with_a_part_from_before_its_checkpoint_has_it_whole() -> None:
    def late(run: SyncRun) -> Any:
        for step in run.steps():
            if step == 1:
                run.state["kept"] = run.call(act, 1)
            if step == 4:
                run.messages.append({"content": run.state["kept"]})
            if step == 6:
                return list(run.messages)

    def of(run_id: str) -> Any:
        result = RecoverableAgent(late, store, 3).run_with_recovery_sync("t", run_id)
        return result["result"]

    store = CheckpointStore()
    assert of("run") == [{"content": f"1 done {TEXT} "}]
    fork(store, "run", "child", at_step=4)
    assert of("child") == of("run")


def test_a_message_whose_outcome_is_damaged_is_not_made_up() -> None:
    """A checkpoint that needs it is passed over, and listed so; a run that needs it stops."""
    clean = SimulatedDisk(seed=1)
    dying.add(5)
    with pytest.raises(Died), CheckpointStore(LogStore("runs", clean, "power")) as store:
        recovered(store)
    with LogStore("runs", clean, "power").read("run") as reader:  # type: ignore[union-attr]
        outcomes = [one.lsn for one in reader.records() if one.kind == "outcome"]
    for lsn in outcomes:
        disk = clean.after_process_death()
        damage(disk, "run", lsn)
        with CheckpointStore(LogStore("runs", disk, "power")) as store:
            (listed,) = store.run("run").checkpoints()
            needed = lsn < listed.lsn
            assert bool(listed.validity) == (store.load_latest("run") is not None) == (not needed)
            with pytest.raises(DamagedRunError, match=f"LSN {lsn}"):
                recovered(store)
