"""The model of a log, and what is checked of it after a crash or damage.

The model is the list of what was appended, in groups that must be there whole or not at all, and
how much of it was committed.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

from hypothesis import strategies as st

from eventlog import Damage, EventLog
from eventlog.format.footer import read_footer
from eventlog.format.frame import HEADER_SIZE, RECORDS, encode_frame, frames_ahead
from eventlog.format.names import segment_number
from eventlog.testing import Crash, SimulatedDisk

SEGMENT_SIZE = 900  # a handful of records
Action = tuple[Any, ...]


class History:
    """A log under test, beside the model of it."""

    def __init__(self, disk: SimulatedDisk, crash: tuple[int, int] | None = None) -> None:
        self.disk = disk
        # The calls of all processes so far, and at which of them the last one crashes, torn how.
        self.calls: list[str] = []
        self._crash = crash
        self.groups: list[list[tuple[str, Any]]] = []
        self.committed = 0
        # What the log begins at, and what it may begin at when a truncation is under way.
        self.oldest = self.truncating = 1
        self.log: EventLog | None = None

    def open(self) -> EventLog:
        if self._crash is not None:
            call, torn = self._crash
            self.disk.crash_at(call - len(self.calls) - len(self.disk.calls), torn)
        self.log = EventLog.open("log", files=self.disk, segment_size=SEGMENT_SIZE)
        return self.log

    def flat(self) -> list[tuple[str, Any]]:
        return [item for group in self.groups for item in group]

    def do(self, action: Action) -> None:
        assert self.log is not None
        verb, *rest = action
        if verb == "append":
            body = self.body(*rest)
            self.groups.append([("event", body)])
            self.log.append("event", body)
        elif verb == "batch":
            items = [("part", self.body(size, "text")) for size in rest[0]]
            self.groups.append(items)
            self.log.append_batch(items)
        elif verb == "snapshot":
            state = self.body(rest[0], "text")
            self.groups.append([("snapshot", state)])
            self.log.append_snapshot(state)
        elif verb == "commit":
            self.log.commit()
            self.committed = len(self.flat())
        elif verb == "roll":
            self.log.roll()
        elif verb == "truncate":  # before the newest snapshot, as retention does
            kinds = [kind for kind, _ in self.flat()]
            newest = max(
                (lsn for lsn, kind in enumerate(kinds, 1) if kind == "snapshot"), default=1
            )
            self.truncating = newest
            self.oldest = self.log.truncate_before(newest)
            assert self.oldest <= newest
        elif verb == "reopen":
            self.close()
            self.open()
        else:  # the process dies here, and the next one goes on
            assert verb == "die"
            self.drop()
            self.calls += self.disk.calls
            self.disk = self.disk.after_process_death()
            self.open()

    def close(self) -> None:
        assert self.log is not None
        self.log.close()
        self.committed = len(self.flat())

    def drop(self) -> None:
        """Leave the log as a crash leaves it, without a word."""
        if self.log is not None:
            self.log._release()
            self.log = None

    def body(self, size: int, what: str) -> dict[str, Any]:
        files = segments(self.disk)
        newest = bytes(files[max(files)].rstrip(b"\0")) if files else b""
        return {"n": len(self.flat()), "data": PAYLOADS[what](newest, size)}


def forged(segment: bytes, size: int) -> bytes:
    """A frame of that segment, far ahead, that calls everything durable."""
    if not segment:
        return b""
    frame = encode_frame(segment[56:60], RECORDS, 1, b"x" * size, (1000, 999, 0))
    return b"".join(bytes(pad) + frame for pad in range(8))  # one of them is aligned


# An agent may read its own log while it runs, and record what it has read.
PAYLOADS: dict[str, Callable[[bytes, int], Any]] = {
    "text": lambda segment, size: "x" * size,
    "zeros": lambda segment, size: bytes(size),
    "segment": lambda segment, size: segment[:2000],
    "frames": lambda segment, size: bytes(size % 8) + segment[HEADER_SIZE:2000],
    "forged": forged,
}


def segments(disk: SimulatedDisk) -> dict[int, bytearray]:
    """The bytes of the segments, by number; to be changed at will."""
    files = disk.directories.get("log", {})
    found = {segment_number(name): file.content for name, file in files.items()}
    return {number: content for number, content in found.items() if number is not None}


def run(program: list[Action], crash: tuple[int, int] | None = None, seed: int = 0) -> History:
    """All of the program, and the log left open; ``crash`` (a call, torn after so much) ends it."""
    history = History(SimulatedDisk(seed), crash)
    try:
        history.open()
        for action in program:
            history.do(action)
    except Crash:
        pass
    return history


def read(disk: SimulatedDisk) -> tuple[dict[int, tuple[str, Any]], list[Damage]]:
    """Records by LSN and all damage, of a fresh reader that changes nothing."""
    damaged: list[Damage] = []
    with EventLog.read("log", files=disk) as reader:
        found = list(reader.records(on_damage=damaged.append))
    assert [record.lsn for record in found] == sorted({record.lsn for record in found})
    return {record.lsn: (record.kind, record.body) for record in found}, damaged


def state_of(disk: SimulatedDisk) -> dict[int, bytes]:
    return {number: bytes(content) for number, content in segments(disk).items()}


def check_recovery(history: History, disk: SimulatedDisk, again: bool = True) -> None:
    """After an honest crash: all committed, a prefix of what was appended, and usable."""
    found = check_recovered(history, disk)
    if again:
        check_usable(disk, found)


def check_recovered(history: History, disk: SimulatedDisk) -> list[str]:
    """Opening finds what was committed, in order, byte for byte, and tells the truth; the kinds."""
    expected = history.flat()
    before = state_of(disk)
    with EventLog.open("log", files=disk, segment_size=SEGMENT_SIZE) as log:
        assert log.report.damaged == ()
        assert history.oldest <= log.oldest_lsn <= max(history.oldest, history.truncating)
        found = [(record.lsn, record.kind, record.body) for record in log.records()]
        assert found == [
            (lsn, kind, body)
            for lsn, (kind, body) in enumerate(expected[: log.last_lsn], 1)
            if lsn >= log.oldest_lsn
        ]
        assert log.last_lsn >= history.committed
        ends = list(itertools.accumulate((len(g) for g in history.groups), initial=0))
        assert log.last_lsn in ends, "a batch is there in part"
        snapshots = [lsn for lsn, kind, _ in found if kind == "snapshot"]
        newest = log.latest_snapshot()
        assert (newest.lsn if newest else None) == (snapshots[-1] if snapshots else None)
        if log.report.torn_size or state_of(disk) != before:
            check_cut_off(before, state_of(disk), log.report.torn_size)
    return [kind for _, kind, _ in found]


def check_cut_off(before: dict[int, bytes], after: dict[int, bytes], torn_size: int) -> None:
    """What is reported as cut off is all that was behind the records that are kept, zeros apart."""
    last = max(before)
    if max(after) > last:
        return  # the lock file was lost: the tail stays, and the new segment overrules it
    footer = read_footer(after[last], after[last][56:60])
    assert footer is not None, "recovery seals what it has cut"
    assert torn_size == len(before[last][footer.offset :].rstrip(b"\0"))


def check_usable(disk: SimulatedDisk, kinds: list[str]) -> None:
    """A second recovery changes nothing; what is appended then survives the next crash."""
    recovered = state_of(disk)
    with EventLog.open("log", files=disk, segment_size=SEGMENT_SIZE) as log:
        last = log.last_lsn
        assert log.report.torn_size == 0
        assert [record.kind for record in log.records()] == kinds
        assert state_of(disk) == recovered, "a second recovery changed something"
        assert log.append("more", {"n": last}) == last + 1
        log.commit()
        after = disk.after_power_loss(last)
    with EventLog.open("log", files=after, segment_size=SEGMENT_SIZE) as log:
        assert log.report.damaged == () and log.last_lsn == last + 1
        assert [record.kind for record in log.records()] == [*kinds, "more"]


def check_marks(history: History) -> None:
    """Each frame names the newest snapshot before it, and calls nothing durable that is not."""
    kinds = [kind for kind, _ in history.flat()]
    for content in map(bytes, segments(history.disk).values()):
        for frame in frames_ahead(content, HEADER_SIZE, content[56:60]):
            earlier = [lsn for lsn in range(1, frame.lsn) if kinds[lsn - 1] == "snapshot"]
            assert frame.snapshot == max(earlier, default=0)
            assert frame.durable < frame.lsn


def committed_bytes(disk: SimulatedDisk) -> Iterator[tuple[int, int]]:
    """Segment and offset of every byte of headers, frames and padding, without the footers at the
    end: several, if a process died in between. They hold no record."""
    for number, content in segments(disk).items():
        size = len(content)
        while footer := read_footer(bytes(content[:size]), bytes(content[56:60])):
            size = footer.offset
        if size == len(content):  # no footer
            size = len(content.rstrip(b"\0"))
        for offset in range(size):
            yield number, offset


sizes = st.integers(0, 300)
actions: st.SearchStrategy[Action] = st.one_of(
    st.tuples(st.just("append"), sizes, st.sampled_from(sorted(PAYLOADS))),
    st.tuples(st.just("batch"), st.lists(sizes, min_size=1, max_size=4)),
    st.tuples(st.just("snapshot"), sizes),
    st.tuples(st.just("commit")),
    st.tuples(st.just("truncate")),
    st.tuples(st.just("roll")),
    st.tuples(st.just("reopen")),
    st.tuples(st.just("die")),
)
programs = st.lists(actions, max_size=14)

# One of everything, with rolls, for the exhaustive sweeps.
PROGRAM: list[Action] = [
    ("append", 10, "text"),
    ("batch", [5, 60, 0]),
    ("commit",),
    ("append", 100, "frames"),
    ("snapshot", 30),
    ("commit",),
    ("append", 33, "forged"),
    ("reopen",),
    ("append", 200, "text"),
    ("append", 7, "zeros"),
    ("commit",),
    ("batch", [90, 90]),
    ("snapshot", 8),
    ("append", 31, "text"),
    ("commit",),
    ("append", 3, "text"),
    ("append", 50, "forged"),
]
SMALL: list[Action] = [
    ("append", 9, "text"),
    ("snapshot", 3),
    ("commit",),
    ("batch", [1, 700]),
    ("append", 9, "forged"),
    ("commit",),
    ("append", 1, "text"),
]


TORN_SIZES = (0, 1, 7, 8, 47, 48, 49, 64, 100, 1 << 20)


def crashes(program: list[Action], torn_sizes: tuple[int, ...]) -> Iterator[History]:
    """The program crashed at every call that changes the disk."""
    whole = run(program)
    calls = whole.calls + whole.disk.calls
    whole.drop()
    for call in range(len(calls) + 1):
        for torn in torn_sizes:
            history = run(program, (call, torn))
            yield history
            history.drop()
            if calls[call : call + 1] != ["write"]:
                break  # nothing to be torn
