"""Tests that a store keeps logs: one writer, durable records, damage that is found."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from eventlog import DamagedError, LogError, LogLockedError, LogReader, Snapshot, WritableLog
from eventlog.dump import verify
from eventlog.errors import FencedError
from recovery.stores.protocol import RunStore

OpenStore = Callable[[], RunStore]
Damage = Callable[[str], None]

RUN = "run_001"


def records(store: RunStore, run_id: str = RUN) -> list[tuple[int, str, Any]]:
    reader = store.read(run_id)
    assert reader is not None
    with reader:
        if isinstance(reader, LogReader):
            assert [found for found in verify(reader) if found.bit] == []
        return [(record.lsn, record.kind, record.body) for record in reader.records()]


def written(log: WritableLog, *values: Any) -> None:
    for value in values:
        log.append("value", value)
    log.commit()


class LogConformance:
    """Tests of logs: see StoreConformance."""

    @pytest.fixture
    def damage(self) -> Damage | None:
        """None: damage is not tested."""
        return None

    # -- one writer

    def test_what_is_committed_is_read_by_others(self, open_store: OpenStore) -> None:
        one, other = open_store(), open_store()
        assert one.read(RUN) is None and one.run_ids() == [] and one.size(RUN) == 0
        with one.claim(RUN) as log:
            assert (log.last_lsn, log.epoch) == (0, 1) and not log.former_owner()
            written(log, 1, {"two": [2.5, None, b"\0\xff"]}, "dritter")
            assert log.durable_lsn == log.last_lsn == 3
            found = records(other)
            assert found == [
                (1, "value", 1),
                (2, "value", {"two": [2.5, None, b"\0\xff"]}),
                (3, "value", "dritter"),
            ]
            assert [record.body for record in log.records(2)] == [one[2] for one in found[1:]]
        assert other.run_ids() == [RUN] and other.size(RUN) > 0
        with other.claim(RUN) as log:
            assert log.last_lsn == 3 and log.report.last_lsn == 3 and not log.report.damaged

    def test_a_batch_is_all_there_and_snapshots_are_found(self, open_store: OpenStore) -> None:
        with open_store().claim(RUN) as log:
            assert log.append_batch([("a", 1), ("b", 2), ("c", 3)]) == [1, 2, 3]
            assert log.append_snapshot({"state": 1}) == 4
            log.append("d", 4)
            log.append_snapshot({"state": 2})
            log.commit()
        reader = open_store().read(RUN)
        assert reader is not None
        with reader:
            kinds = [record.kind for record in reader.records()]
            assert kinds == ["a", "b", "c", "snapshot", "d", "snapshot"]
            assert [one.body for one in reader.snapshots()] == [{"state": 2}, {"state": 1}]
            newest = reader.latest_snapshot()
            assert isinstance(newest, Snapshot) and newest.lsn == 6
            assert {lsn: one.body for lsn, one in reader.fetch({2, 5, 99}).items()} == {2: 2, 5: 4}
            assert reader.tail().next_lsn == 7 and reader.durable_lsn() == 6

    def test_one_process_has_a_run_and_hands_it_over(self, open_store: OpenStore) -> None:
        one, other = open_store(), open_store()
        log = one.claim(RUN)
        written(log, 1)
        with pytest.raises(LogLockedError) as held:
            other.claim(RUN)
        assert RUN in str(held.value)
        reader = other.read(RUN)
        assert reader is not None
        with reader:
            owner = reader.owner()
        assert owner is not None and owner.alive and owner.epoch == log.epoch
        log.close()
        with other.claim(RUN) as after:  # at once
            assert after.epoch > log.epoch and after.last_lsn == 1
            assert not after.former_owner()
        with pytest.raises(LogError):
            log.append("value", 2)

    def test_a_stale_owner_is_refused(self, open_store: OpenStore) -> None:
        one, other = open_store(), open_store()
        old = one.claim(RUN)
        written(old, "kept")
        new = other.claim(RUN, takeover=True)
        assert new.epoch > old.epoch and new.former_owner() and new.last_lsn == 1
        old.append("value", "stale")
        with pytest.raises(FencedError):
            old.commit()
        written(new, "new")
        with pytest.raises(LogError):
            written(old, "stale again")
        old.close()
        with pytest.raises(LogError):
            old.commit()
        written(new, "newer")
        assert [body for _, _, body in records(one)] == ["kept", "new", "newer"]
        new.close()
        with other.claim(RUN) as last:
            assert last.epoch > new.epoch and last.last_lsn == 3

    def test_the_next_owner_is_told_of_a_process_that_may_still_act(
        self, open_store: OpenStore
    ) -> None:
        for run_id, acts in ((RUN, True), ("other", False)):
            log = open_store().claim(run_id)
            written(log, 1)
            log.may_still_act(True)
            log.may_still_act(acts)
            log.close()
            with open_store().claim(run_id, takeover=acts) as after:
                assert bool(after.former_owner()) == acts and after.last_lsn == 1
            log.may_still_act(False)

    def test_one_of_many_claims_wins(self, open_store: OpenStore) -> None:
        stores = [open_store() for _ in range(6)]
        start = threading.Barrier(len(stores))

        def claim(store: RunStore) -> WritableLog | None:
            start.wait()
            try:
                return store.claim(RUN)
            except LogLockedError:
                return None

        with ThreadPoolExecutor(len(stores)) as threads:
            logs = [log for log in threads.map(claim, stores) if log is not None]
        assert len(logs) == 1
        logs[0].close()

    def test_threads_append_and_commit(self, open_store: OpenStore) -> None:
        store = open_store()
        logs = [store.claim(f"run_{i}") for i in range(4)]

        def append(i: int) -> None:
            for number in range(25):
                logs[i % 4].append("value", [i, number])
                logs[i % 4].commit()

        with ThreadPoolExecutor(8) as threads:
            list(threads.map(append, range(8)))
        for i, log in enumerate(logs):
            log.close()
            found = [body for _, _, body in records(open_store(), f"run_{i}")]
            for thread in (i, i + 4):
                assert [n for t, n in found if t == thread] == [*range(25)]

    def test_large_records_and_truncation(self, open_store: OpenStore) -> None:
        with open_store().claim(RUN) as log:
            for i in range(6):
                log.append("large", {"i": i, "data": bytes([i]) * 700_000})
                log.commit_behind()
            log.roll()
            keep = log.append("small", "kept")
            log.commit()
            assert log.fetch({2})[2].body["i"] == 1
            oldest = log.truncate_before(keep)
            assert 1 < oldest <= keep and log.oldest_lsn == oldest
            log.append("small", "last")
        reader = open_store().read(RUN)
        assert reader is not None
        with reader:
            found = list(reader.records())
            assert [one.body for one in found][-2:] == ["kept", "last"]
            assert found[0].lsn == reader.oldest_lsn == oldest
        assert open_store().size(RUN) < 5_000_000

    def test_a_follower_sees_what_comes(self, open_store: OpenStore) -> None:
        with open_store().claim(RUN) as log:
            written(log, 1)
            reader = open_store().read(RUN)
            assert reader is not None
            with reader:
                arrivals = reader.arrivals()
                assert drained(arrivals) == [1]
                written(log, 2, 3)
                assert drained(arrivals) == [2, 3]
                log.roll()
                written(log, 4)
                assert drained(arrivals) == [4]
                assert [one.body for one in reader.records()] == [1, 2, 3, 4]

    def test_impossible_ids_are_refused(self, open_store: OpenStore) -> None:
        store = open_store()
        for run_id in ("", "../up", "a/b", ".hidden", "x" * 200, "new\nline"):
            for act in (store.claim, store.read, store.inbox, store.remove, store.size):
                with pytest.raises(ValueError):
                    act(run_id)

    def test_damage_is_found(self, open_store: OpenStore, damage: Damage | None) -> None:
        if damage is None:
            pytest.skip("the store says no way to damage a frame")
        with open_store().claim(RUN) as log:
            for i in range(20):
                written(log, {"i": i, "text": "x" * 50})
        damage(RUN)
        reader = open_store().read(RUN)
        assert reader is not None
        with reader:
            with pytest.raises(DamagedError):
                list(reader.records())
            lost: list[Any] = []
            sound = [record.lsn for record in reader.records(on_damage=lost.append)]
            gone = {lsn for one in lost for lsn in range(one.first_lsn, one.last_lsn + 1)}
            assert gone and gone.isdisjoint(sound) and gone | {*sound} == {*range(1, 21)}
        with open_store().claim(RUN) as log:
            assert log.last_lsn == 20, "what is lost keeps its numbers"


def drained(arrivals: Iterator[Any]) -> list[Any]:
    """What comes until nothing does; a server may take a moment."""
    found: list[Any] = []
    until = time.monotonic() + 30
    while not found and time.monotonic() < until:
        for item in arrivals:
            if item is None:
                break
            found.append(item.body)
        else:
            return found
    return found


def until(holds: Callable[[], Any]) -> None:
    until = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.02)
