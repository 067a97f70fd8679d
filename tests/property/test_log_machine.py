"""The whole public API of the log against a model of it, in any order, on a disk that misbehaves.

The model is the list of what was appended, how much of it the operating system has (``handed``),
and how much is durable (``committed``). Whatever happens, what is read is a prefix of that list, in
whole batches, with at least the one after a death of the process and the other after a power loss.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from typing import Any
from unittest import mock

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from eventlog import (
    Damage,
    EventLog,
    LogError,
    LogLockedError,
    Packed,
    Record,
    RefusedValueError,
    Snapshot,
)
from eventlog.dump import dump
from eventlog.encryption import Encryption
from eventlog.errors import (
    EncryptedLogError,
    FencedError,
    NotEncryptedError,
    UnsupportedFormatError,
    WriterFailedError,
)
from eventlog.format.names import segment_name
from eventlog.testing import Crash, SimulatedDisk
from eventlog.write import log as log_module
from eventlog.write.log import Durability
from tests.property.encrypted import KEYS, encrypted
from tests.property.histories import PAYLOADS, committed_bytes, segments

PATH = "log"
Item = tuple[str, Any]

sizes = st.integers(0, 300)
payloads = st.sampled_from(sorted(PAYLOADS))
lsns = st.integers(0, 60)
seeds = st.integers(0, 1 << 16)
calls = st.integers(0, 12)
torn_sizes = st.sampled_from([0, 1, 8, 47, 48, 64, 100, 1 << 20])


class Follower:
    """A reader that stays where it is, and goes on when there is more.
    ``has_key``: else it is told when the log is encrypted from somewhere on."""

    def __init__(self, disk: SimulatedDisk, start: int, has_key: bool) -> None:
        self.has_key = has_key
        self.reader = EventLog.read(PATH, files=disk)
        self.damaged: list[Damage] = []
        self.next = start
        self.records = self.reader.records(start, follow=True, on_damage=self.damaged.append)

    def close(self) -> None:
        self.records.close()  # type: ignore[attr-defined]
        self.reader.close()


class Patience:
    """Instead of sleeping: a follower looks again a few times, and then it has missed something."""

    def __init__(self) -> None:
        self.left = 0

    def sleep(self, _: float) -> None:
        self.left -= 1
        assert self.left >= 0, "waits for a record that is there"


class SyncCommitter:
    """Commits behind, at once: what a thread would do a little later, at a time that repeats."""

    def request(self, log: EventLog, lsn: int) -> None:
        log.commit_now(lsn)

    def forget(self, log: EventLog) -> None: ...


class LogMachine(RuleBasedStateMachine):
    """Rules are what may happen to a log; ``found_is_what_was_appended`` is what must hold."""

    def __init__(self) -> None:
        super().__init__()
        self.disk = SimulatedDisk()
        self.log: EventLog | None = None
        self.failed = False  # whether the writer is
        self.durability: Durability = "power"
        self.segment_size = 900
        self.fenced: list[EventLog] = []
        self.followers: list[Follower] = []
        self.items: list[Item] = []
        self.ends = {0}  # the LSNs at which an append, or a batch, ends
        self.handed = self.committed = 0
        self.oldest, self.oldest_perhaps = 1, 1
        self.lost: set[int] = set()
        self.damaged = False  # once at most: another damage may hide the first
        self.rough = False  # whether anything happened that may leave a torn tail
        self.fate: int | None = None  # after a crash: a power loss of this seed
        self.patience = Patience()
        self.key: Encryption | None = None  # of whoever opens or reads the log from now on
        self.patches = ExitStack()
        # Of the reader only: other threads sleep as ever.
        self.patches.enter_context(mock.patch("eventlog.read.reader.time", self.patience))
        self.patches.enter_context(mock.patch.object(log_module, "committer", SyncCommitter()))
        self.patches.enter_context(encrypted(lambda: self.key))

    def teardown(self) -> None:
        self._forget_everybody()
        self.patches.close()

    # -- the writer

    @initialize(
        durability=st.sampled_from(["power", "power", "process", "none"]),
        size=st.sampled_from([300, 900, 900, 4000, 8 << 20]),
        key_id=st.sampled_from([None, None, "old"]),
    )
    def first(self, durability: Durability, size: int, key_id: str | None) -> None:
        self.durability, self.segment_size = durability, size
        if key_id is not None:
            self.key = Encryption(KEYS.get, key_id)
        self.open()

    def closed(self) -> bool:
        return self.log is None

    def healthy(self) -> bool:
        return self.log is not None and not self.failed

    @precondition(closed)
    @rule()
    def open(self) -> None:
        self._attempt(self._open)

    @precondition(closed)
    @rule(
        durability=st.sampled_from(["power", "process", "none"]),
        size=st.sampled_from([300, 900, 4000]),
    )
    def open_otherwise(self, durability: Durability, size: int) -> None:
        self.durability, self.segment_size = durability, size
        self._attempt(self._open)

    @precondition(closed)
    @rule(key_id=st.sampled_from(sorted(KEYS)))
    def open_with_another_key(self, key_id: str) -> None:
        """Encrypted from now on, or under another key. The way back into the clear is refused."""
        accept = self.key is None or self.key.accept_clear
        self.key = Encryption(KEYS.get, key_id, accept_clear=accept)
        self._attempt(self._open)

    @precondition(lambda self: self.key is not None and bool(self.disk.directories))
    @rule()
    def somebody_without_the_key(self) -> None:
        """Learns nothing, changes nothing; and finds all as sound as who has it."""
        calls, key, bad = len(self.disk.calls), self.key, Encryption(bytes(32))
        self.patience.left = 1000  # a dump looks twice at a torn tail
        assert key is not None
        for self.key in (None, bad):
            with suppress(
                EncryptedLogError, NotEncryptedError, LogLockedError, UnsupportedFormatError
            ):
                _read(self.disk, self.lost)
                hidden = self.items and not key.accept_clear and self.oldest_perhaps == 1
                assert not (hidden and self.healthy() and self.handed), "read without the key"
        assert len(self.disk.calls) == calls
        if self.log is None and self.committed and not key.accept_clear:
            # Once all records are removed, nothing shows which key it was.
            shows_key = self.oldest_perhaps <= self.committed
            for self.key in (None, bad) if shows_key else (None,):
                with pytest.raises(EncryptedLogError):
                    EventLog.open(PATH, files=self.disk)
            assert len(self.disk.calls) == calls
        self.key = None
        with suppress(UnsupportedFormatError), EventLog.read(PATH, files=self.disk) as reader:
            seen = [item["lsn"] for item in dump(reader) if "lsn" in item]
            self.key = key
            assert seen == [record.lsn for record in _read(self.disk, self.lost)]
        self.key = key

    def _open(self, takeover: bool = False) -> None:
        log = EventLog.open(
            PATH,
            self.durability,
            takeover=takeover,
            files=self.disk,
            segment_size=self.segment_size,
        )
        self.log, self.failed = log, False
        report = log.report
        reported = {lsn for d in report.damaged for lsn in range(d.first_lsn, d.last_lsn + 1)}
        assert reported <= self.lost, str(report)
        assert not report.damaged or self.damaged
        assert self.rough or not report.torn_size, "torn, and nothing happened"
        assert report.last_lsn == log.last_lsn == log.durable_lsn
        assert self.handed <= log.last_lsn <= len(self.items)
        self._settle(log.last_lsn)
        if self.oldest < self.oldest_perhaps:  # a crash came while segments were removed
            there = next(log.records(on_damage=_ignore), None)
            self.oldest = min(there.lsn if there else log.oldest_lsn, self.oldest_perhaps)
            self.oldest_perhaps = self.oldest
        self.rough = bool(self.fenced)

    def _settle(self, last: int) -> None:
        """The log ends here: what was appended behind it is gone."""
        assert last in self.ends
        del self.items[last:]
        self.ends = {end for end in self.ends if end <= last}
        self.handed = self.committed = last

    @precondition(healthy)
    @rule(size=sizes, what=payloads)
    def append(self, size: int, what: str) -> None:
        body = self._body(size, what)
        self._append([("event", body)], lambda log: log.append("event", body))

    @precondition(healthy)
    @rule(size=sizes)
    def append_packed(self, size: int) -> None:
        body = Packed(b"\x93\x01\x02\xc4" + bytes([size % 200]) + bytes(size % 200))
        self._append(
            [("packed", [1, 2, bytes(size % 200)])], lambda log: log.append("packed", body)
        )

    @precondition(healthy)
    @rule(batch=st.lists(st.tuples(sizes, payloads), max_size=4))
    def append_batch(self, batch: list[tuple[int, str]]) -> None:
        items = [("part", self._body(size, what)) for size, what in batch]
        if items:
            self._append(items, lambda log: log.append_batch(items)[-1])
        else:
            assert self._writer().append_batch([]) == []

    @precondition(healthy)
    @rule(size=sizes, what=payloads)
    def append_snapshot(self, size: int, what: str) -> None:
        state = self._body(size, what)
        self._append([("snapshot", state)], lambda log: log.append_snapshot(state))

    @precondition(healthy)
    @rule()
    def append_what_cannot_be_carried(self) -> None:
        log = self._writer()
        before = list(self.disk.calls)
        with pytest.raises(RefusedValueError):
            log.append("event", {"a": [object()]})
        with pytest.raises(RefusedValueError):
            log.append_batch([("event", 1), ("event", 1 << 64)])
        with pytest.raises(RefusedValueError):
            log.append("", 1)
        assert self.disk.calls == before and log.last_lsn == len(self.items)

    def _append(self, items: list[Item], call: Callable[[EventLog], int]) -> None:
        log, buffered = self._writer(), self.durability == "none"
        self.items += items  # there perhaps, should the call fail
        self.ends.add(len(self.items))
        lsn = self._attempt(lambda: call(log))
        if lsn is not None:
            assert lsn == log.last_lsn == len(self.items)
            if not buffered:
                self.handed = lsn

    @precondition(healthy)
    @rule()
    def commit(self) -> None:
        log = self._writer()
        if self._done(log.commit):
            if self.durability == "power":
                assert log.durable_lsn == len(self.items)
            self._note_durable(log)

    @precondition(healthy)
    @rule()
    def commit_behind(self) -> None:
        log = self._writer()
        self._attempt(log.commit_behind)
        if self.log is not None and log._appender._failed is not None:
            self.failed = self.rough = True  # and nobody was told yet
            with pytest.raises(WriterFailedError):
                log.commit()

    @precondition(lambda self: self.log is not None)
    @rule()
    def close(self) -> None:
        log, self.log = self._writer(), None
        if self.failed:
            log.close()  # says nothing: the failure has been told
        elif self._done(log.close):
            self.handed = len(self.items)
            self._note_durable(log)
            assert self.committed == len(self.items)
            if not self.lost:
                again = self.disk.after_process_death()
                with EventLog.open(PATH, files=again) as opened:
                    assert opened.report.torn_size == 0
                    assert opened.last_lsn == len(self.items)

    def _refuses(self, log: EventLog) -> None:
        """A failed writer takes no more, and tries nothing again."""
        before = list(self.disk.calls)
        for refused in (lambda: log.append("event", 1), log.commit, lambda: log.append_snapshot(1)):
            with pytest.raises((WriterFailedError, FencedError)):
                refused()
        assert self.disk.calls == before

    @precondition(healthy)
    @rule(error=st.sampled_from([errno.EIO, errno.ENOSPC]))
    def a_flush_fails_and_the_log_is_opened_again(self, error: int) -> None:
        """What it was to write is in memory alone, and must not stay there."""
        self.append(20, "text")
        if self.healthy():
            self.disk.fail_at("sync", 0, error)
            self.commit()
        if self.log is not None:
            self.close()
        if self.log is None:
            self.open()

    @precondition(healthy)
    @rule(where=seeds)
    def truncate_before(self, where: int) -> None:
        log, lsn = self._writer(), where % (len(self.items) + 4)
        if lsn > len(self.items) + 1:
            with pytest.raises(ValueError, match="ends at"):
                log.truncate_before(lsn)
            return
        self.oldest_perhaps = max(self.oldest, lsn)
        oldest = self._attempt(lambda: log.truncate_before(lsn))
        if oldest is not None:
            assert self.oldest <= oldest <= max(lsn, self.oldest)
            self.oldest = self.oldest_perhaps = oldest
            self.handed = len(self.items)
            self._note_durable(log)

    @precondition(healthy)
    @rule()
    def roll(self) -> None:
        if self._attempt(self._rolled):
            self._note_durable(self._writer())

    def _rolled(self) -> bool:
        self._writer().roll()
        return True

    def _note_durable(self, log: EventLog) -> None:
        """What the log calls durable must be there from now on, whatever happens."""
        assert log.durable_lsn <= len(self.items)
        self.committed = max(self.committed, log.durable_lsn)
        self.handed = max(self.handed, self.committed)

    # -- others

    @precondition(healthy)
    @rule()
    def a_second_writer_is_refused(self) -> None:
        calls = len(self.disk.calls)
        with pytest.raises(LogLockedError):
            EventLog.open(PATH, files=self.disk)
        assert len(self.disk.calls) == calls, "the one that was refused has changed something"

    @precondition(lambda self: self.log is not None)
    @rule(late=st.lists(sizes, max_size=3))
    def takeover(self, late: list[int]) -> None:
        old = self._writer()
        self.rough = True
        self.fenced.append(old)
        self.log = None
        self._attempt(lambda: self._open(takeover=True))
        if self.log is not None:
            for size in late:
                if self.fenced:  # no crash came with the one before
                    self.a_fenced_writer_goes_on(size, "append")
            if old in self.fenced:
                self.a_fenced_writer_goes_on(self.fenced.index(old), "commit")
        elif old in self.fenced:  # the takeover failed, perhaps before anybody was told: both stop
            self.fenced.remove(old)
            old._release()

    @precondition(lambda self: self.fenced)
    @rule(size=sizes, then=st.sampled_from(["append", "batch", "snapshot", "commit", "close"]))
    def a_fenced_writer_goes_on(self, size: int, then: str) -> None:
        old = self.fenced[size % len(self.fenced)]
        self.rough = True
        act: dict[str, Callable[[], object]] = {
            "append": lambda: old.append("late", size),
            "batch": lambda: old.append_batch([("late", "x" * size)] * 3),
            "snapshot": lambda: old.append_snapshot({"late": size}),
            "commit": old.commit,
            "close": old.close,
        }
        durable = old.durable_lsn
        with suppress(FencedError, WriterFailedError):
            done = self._attempt(lambda: (act[then](),), old)
            assert then != "commit" or done is None, "acknowledged by a writer that lost the log"
        assert old.durable_lsn == durable
        if then == "close":
            self.fenced = [log for log in self.fenced if log is not old]

    # -- readers

    @precondition(lambda self: self.log is not None)
    @rule(start=lsns)
    def read_in_the_writer(self, start: int) -> None:
        log = self._writer()
        if self.failed:
            return
        damaged: list[Damage] = []
        records = self._attempt(lambda: list(log.records(start, on_damage=damaged.append)))
        if records is None:
            return
        self.handed = len(self.items)
        self._check(records, start, exactly=True)
        there = set(range(self.oldest, len(self.items) + 1)) - self.lost
        snapshots = [lsn for lsn in sorted(there) if self.items[lsn - 1][0] == "snapshot"]
        assert [s.lsn for s in log.snapshots()] == snapshots[::-1]
        newest = log.latest_snapshot()
        assert (newest.lsn if newest else 0) == max(snapshots, default=0)

    @precondition(healthy)
    @rule(wanted=st.sets(lsns, max_size=6))
    def fetch(self, wanted: set[int]) -> None:
        log = self._writer()
        found = self._attempt(lambda: log.fetch(wanted))
        if found is not None:
            self.handed = len(self.items)
            there = {lsn for lsn in wanted if self.oldest <= lsn <= len(self.items)} - self.lost
            assert set(found) == there
            assert all(self._item(record) == self.items[lsn - 1] for lsn, record in found.items())

    @precondition(lambda self: len(self.followers) < 3 and bool(segments(self.disk)))
    @rule(start=st.integers(1, 40))
    def start_following(self, start: int) -> None:
        self.followers.append(Follower(self.disk, max(start, self.oldest), self.key is not None))

    @precondition(lambda self: self.followers and self.log is not None)
    @rule(which=seeds, count=st.integers(1, 8))
    def follow(self, which: int, count: int) -> None:
        """As far as the writer has come; it would wait there."""
        follower = self.followers[which % len(self.followers)]
        for _ in range(count):
            follower.next = self._next_there(follower.next)
            if follower.next > self.handed:
                return
            self.patience.left = 3
            try:
                record = next(follower.records)
            except EncryptedLogError:
                assert self.key is not None and not follower.has_key
                self.followers.remove(follower)
                follower.close()
                return
            assert record.lsn == follower.next
            assert self._item(record) == self.items[record.lsn - 1]
            follower.next += 1
        assert {lsn for d in follower.damaged for lsn in _range(d)} <= self.lost

    def _next_there(self, lsn: int) -> int:
        lsn = max(lsn, self.oldest)
        while lsn in self.lost:
            lsn += 1
        return lsn

    @precondition(lambda self: self.followers)
    @rule(which=seeds)
    def stop_following(self, which: int) -> None:
        self.followers.pop(which % len(self.followers)).close()

    # -- what goes wrong

    @rule(call=calls, torn=torn_sizes, fate=st.none() | seeds)
    def a_crash_is_near(self, call: int, torn: int, fate: int | None) -> None:
        self.disk.crash_at(call, torn)
        self.fate = fate

    @rule(
        verb=st.sampled_from(
            ["write", "sync", "sync", "truncate", "publish", "create", "remove", "sync directory"]
        ),
        nth=st.integers(0, 3),
        error=st.sampled_from([errno.EIO, errno.ENOSPC]),
    )
    def a_call_will_fail(self, verb: str, nth: int, error: int) -> None:
        self.disk.fail_at(verb, nth, error)

    @rule(nth=st.integers(0, 3), size=st.integers(0, 90))
    def a_write_will_be_short(self, nth: int, size: int) -> None:
        self.disk.shorten_at(nth, size)

    @rule()
    def the_process_dies(self) -> None:
        """Readers and other writers live on."""
        if self.log is not None:
            self.log._release()
            self.log = None

    @rule(seed=seeds)
    def the_power_fails(self, seed: int) -> None:
        self._forget_everybody()
        self.disk = self.disk.after_power_loss(seed)
        self.handed, self.rough = self.committed, True

    @rule(nth=st.integers(0, 12))
    def reads_fail(self, nth: int) -> None:
        """On a copy: an error of reading is told, and nothing is cut or lost by it."""
        disk = self.disk.after_process_death()
        disk.fail_at("read", nth, errno.EIO)
        with suppress(OSError), EventLog.open(PATH, files=disk) as log:
            self._check(list(log.records(on_damage=_ignore)), 1)
        self._check(_read(disk.after_process_death(), self.lost), 1)

    @precondition(lambda self: not (self.damaged or self.rough))
    @rule(nth=st.integers(0, 12), bit=st.integers(0, 8000))
    def a_read_is_wrong(self, nth: int, bit: int) -> None:
        """On a copy: what is on the disk all the same is not cut.

        (Behind a power loss it may be: then the mark file, which is not flushed, may be gone, and
        the wrong byte is the second fault.)
        """
        disk = self.disk.after_process_death()
        disk.misread_at(nth, bit)
        with suppress(LogError), EventLog.open(PATH, files=disk):
            pass
        damaged: list[Damage] = []
        with EventLog.read(PATH, files=disk) as reader:
            found = {record.lsn for record in reader.records(on_damage=damaged.append)}
        lost = {lsn for d in damaged for lsn in _range(d)}
        assert set(range(self.oldest, self.committed + 1)) <= found | lost

    @precondition(lambda self: not self.damaged and self.committed)
    @rule(which=seeds, bit=st.integers(0, 7), cut=st.booleans())
    def something_is_damaged(self, which: int, bit: int, cut: bool) -> None:
        """Bytes that were committed change, or are cut off; the next process finds the log so."""
        self._forget_everybody()
        self.disk = self.disk.after_process_death()
        self._recover()
        places = list(committed_bytes(self.disk))
        number, offset = places[which % len(places)]
        with EventLog.read(PATH, files=self.disk) as reader:
            items = list(dump(reader))
        holding = {item["segment"] for item in items if item["type"] != "note"}
        # Where a fenced writer went on: what is there does not count.
        beyond = {item["segment"]: item["offset"] for item in items if item["type"] == "note"}
        file = self.disk.open_directory(PATH).open(segment_name(number), write=True)
        if cut:
            file.truncate(offset)
        else:
            file.pwrite(bytes([file.pread(1, offset)[0] ^ 1 << bit]), offset)
        file.sync()
        # A cut, or a flip in a segment without records that count, may lose nothing.
        counts = number in holding and offset < int(str(beyond.get(number, 1 << 40)))
        self._find_damage(must=not cut and counts)

    def _recover(self) -> None:
        """So that all that is there is committed, and one witness more than the mark file."""
        self._open()
        self._writer().commit()
        self._writer().close()
        self.log = None

    def _find_damage(self, must: bool) -> None:
        self.damaged = True
        with EventLog.read(PATH, files=self.disk) as reader:
            damaged: list[Damage] = []
            found = {r.lsn: r for r in reader.records(on_damage=damaged.append)}
        with EventLog.open(PATH, files=self.disk, segment_size=self.segment_size) as log:
            damaged += log.report.damaged
            assert damaged or not must, "damage went unnoticed"
            lost = {lsn for d in damaged for lsn in _range(d)}
            there = set(range(self.oldest, len(self.items) + 1))
            # The header that said what was removed on purpose may be the damaged one.
            perhaps = {
                lsn for d in damaged if "or removed on purpose" in d.what for lsn in _range(d)
            }
            assert lost - perhaps <= there, "never was there"
            assert perhaps <= there | set(range(1, self.oldest))
            assert set(found) == there - lost, "lost without a word, or reported and there"
            self.lost = lost
            assert log.last_lsn == len(self.items)
            lsn = log.append("behind the damage", 1)
            log.commit()
        assert lsn == len(self.items) + 1
        self.items.append(("behind the damage", 1))
        self.ends.add(lsn)
        self.handed = self.committed = lsn

    # -- what must hold

    @invariant()
    def what_was_appended_is_there(self) -> None:
        """For a reader now, and for whoever opens the log after a power loss now."""
        if not self.disk.directories:
            return
        if self.log is not None:
            self._note_durable(self.log)
        exactly = self.healthy() and self.handed == len(self.items)
        self._check(_read(self.disk, self.lost), 1, exactly=exactly)
        after = self.disk.after_power_loss(len(self.disk.calls))
        handed, self.handed = self.handed, self.committed
        self._check(_read(after, self.lost), 1)
        with EventLog.open(PATH, files=after) as log:
            assert log.last_lsn >= self.committed
            assert self.damaged or log.report.damaged == ()
            self._check(list(log.records(on_damage=_ignore)), 1)
        self.handed = handed

    def _check(self, records: list[Record], start: int, exactly: bool = False) -> None:
        """These records are a prefix of what was appended from ``start`` on."""
        found = [record.lsn for record in records]
        last = max(found[-1] if found else 0, self.handed)
        least = self._next_there(max(start, self.oldest_perhaps))
        first = min(found[0], least) if found else least
        assert not found or max(start, self.oldest) <= first
        assert found == [lsn for lsn in range(first, last + 1) if lsn not in self.lost]
        assert last in self.ends or last in self.lost, "a batch is there in part"
        for record in records:
            assert self._item(record) == self.items[record.lsn - 1]
            assert isinstance(record, Snapshot) == (record.kind == "snapshot")
        assert not exactly or last == len(self.items)

    # -- how

    def _writer(self) -> EventLog:
        assert self.log is not None
        return self.log

    def _item(self, record: Record) -> Item:
        return record.kind, record.body

    def _body(self, size: int, what: str) -> dict[str, Any]:
        files = segments(self.disk)
        newest = bytes(files[max(files)].rstrip(b"\0")) if files else b""
        return {"n": len(self.items), "data": PAYLOADS[what](newest, size)}

    def _done(self, call: Callable[[], object]) -> bool:
        return self._attempt(lambda: [call()]) is not None

    def _attempt(self, call: Callable[[], Any], other: EventLog | None = None) -> Any:
        """What it returns; None when the process or the writer (or the other) did not survive."""
        try:
            return call()
        except Crash:
            fate, self.fate = self.fate, None
            self._forget_everybody()
            self.rough = True
            if fate is None:
                self.disk = self.disk.after_process_death()
            else:
                self.disk = self.disk.after_power_loss(fate)
                self.handed = self.committed
        except OSError:
            self.failed, self.rough = self.failed or other is None, True
            if self.log is not None and other is None:
                self._refuses(self.log)
        return None

    def _forget_everybody(self) -> None:
        for follower in self.followers:
            follower.close()
        for log in [*self.fenced, *([self.log] if self.log is not None else [])]:
            log._release()
        self.followers, self.fenced, self.log = [], [], None


def _range(damage: Damage) -> Iterator[int]:
    return iter(range(damage.first_lsn, damage.last_lsn + 1))


def _ignore(damage: Damage) -> None:
    """Known already."""


def _read(disk: SimulatedDisk, lost: set[int]) -> list[Record]:
    """What a fresh reader gives; all damage that it reports is known."""
    damaged: list[Damage] = []
    try:
        with EventLog.read(PATH, files=disk) as reader:
            records = list(reader.records(on_damage=damaged.append))
    except UnsupportedFormatError:  # not even its first file has a durable name
        return []
    assert {lsn for d in damaged for lsn in _range(d)} <= lost, damaged
    return records


@pytest.mark.timeout(900)  # hypothesis takes up to 300 s to make a failure smaller
def test_the_log_does_what_its_model_does() -> None:
    examples = max(50, settings().max_examples // 5)
    run_state_machine_as_test(
        LogMachine, settings=settings(max_examples=examples, stateful_step_count=40)
    )
