"""Logs that somebody made to do harm: bounded in time and memory, and never code.

Whoever can write to a log can forge what is in it; docs/security.md says what that means. What is
held here is that nothing worse comes of it: no hang, no exhausted memory, no escape to the
terminal, nothing read or written outside of the log's directory, no exception that is not ours.
"""

from __future__ import annotations

import io
import json
import os
import resource
import socket
import stat
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import Any

import msgpack
import pytest
import xxhash
from logdump import main

from eventlog import EventLog, LogError
from eventlog.dump import to_json
from eventlog.errors import UnsupportedFormatError
from eventlog.format.durable_mark import DurableMark, encode_mark
from eventlog.format.frame import (
    FOOTER,
    RECORDS,
    SNAPSHOT,
    SegmentHeader,
    decode_segment_header,
    encode_frame,
    encode_trailer,
    frame_at,
    padded,
)
from eventlog.format.names import segment_name, segment_number
from eventlog.format.record import Packed, encode_payload, encode_snapshot, unpack
from recovery import CheckpointStore, RecoverableAgent
from recovery.errors import DamagedRunError
from recovery.history import state_delta as state
from recovery.history.restore_checkpoint import BrokenCheckpointError, restore
from recovery.journal.encoding import encode
from recovery.journal.events import CallReturned, MessagesChanged, RunStarted
from recovery.values.pack import pack, unpack_frozen
from recovery.values.types import Ref
from tests.support.paths import ROOT

SALT = b"\xa1\xa2\xa3\xa4"
LOG_ID = bytes(range(16))
ESCAPES = "\x1b]0;owned\x07\x1b[2J\r\n2026 ERROR forged line\u202e"


def header(number: int = 1, first: int = 1, epoch: int = 1) -> bytes:
    return SegmentHeader(number, LOG_ID, first, 1, epoch, SALT).encode()


def frames(*payloads: tuple[int, bytes], first: int = 1) -> bytes:
    """Frames of one record each, as sound as ours."""
    return b"".join(
        encode_frame(SALT, kind, 1, payload, (first + i, first + i - 1, 0))
        for i, (kind, payload) in enumerate(payloads)
    )


def record(body: bytes, kind: str = "event") -> tuple[int, bytes]:
    return RECORDS, encode_payload(1, [(kind, Packed(body))])


def snapshot(body: bytes) -> tuple[int, bytes]:
    return SNAPSHOT, encode_snapshot(1, "snapshot", body)


def log_of(path: Path, content: bytes, number: int = 1) -> Path:
    path.mkdir(exist_ok=True)
    (path / "LOCK").touch()
    (path / segment_name(number)).write_bytes(content)
    return path


def logdump(*args: Any) -> tuple[int, str]:
    """Exit code and all output."""
    out = io.StringIO()
    with redirect_stdout(out), redirect_stderr(out):
        code = main([str(arg) for arg in args])
    return code, out.getvalue()


def read_all(path: Path) -> list[Any]:
    """Everything that reads, and then writes: reader, dump, verify, open, append."""
    with EventLog.read(path) as reader:
        found = list(reader.records(on_damage=lambda damage: None))
        list(reader.snapshots())
        reader.fetch({1, 2, 3, 1 << 62})
        reader.tail()
    for args in (("dump",), ("dump", "--json"), ("verify",), ("verify", "--json")):
        assert logdump(*args, path)[0] < 64
    with EventLog.open(path) as log:
        lsn = log.append("event", "more")
        log.commit()
        assert lsn == log.last_lsn
    return found


# -- documents

DEEP = 20_000
BOMBS = {
    "nested arrays": b"\x91" * DEEP + b"\xc0",
    "nested maps": b"\x81\xc0" * DEEP + b"\xc0",
    "nested in an extension": b"\xc9" + DEEP.to_bytes(4, "big") + b"\x01" + b"\x91" * DEEP,
    "array that says 2^32 - 1": b"\xdd\xff\xff\xff\xff",
    "map that says 2^32 - 1": b"\xdf\xff\xff\xff\xff",
    "str that says 2^32 - 1": b"\xdb\xff\xff\xff\xff",
    "bin that says 2^32 - 1": b"\xc6\xff\xff\xff\xff",
    "extension that says 2^32 - 1": b"\xc9\xff\xff\xff\xff\x01",
    "arrays that say the whole": (b"\xdd" + (500_000).to_bytes(4, "big")) * 1000 + bytes(500_000),
    "unknown extension": b"\xd4\x63\x00",
    "timestamp": b"\xd6\xff\x00\x00\x00\x00",
    "timestamp of impossible size": b"\xc7\x03\xff\x00\x00\x00",
    "duplicate keys": b"\x82\xa1a\x01\xa1a\x02",
    "keys that are lists": b"\x81\x91\x01\x02",
    "keys that are maps": b"\x81\x80\x02",
    "invalid UTF-8": b"\xa2\xff\xfe",
    "surrogate": b"\xa3\xed\xa0\x80",
    "NaN": b"\xcb\x7f\xf8\x00\x00\x00\x00\x00\x01",
    "never used": b"\xc1",
    "nothing": b"",
    "two documents": b"\xc0\xc0",
    "terminal": msgpack.packb({ESCAPES: ESCAPES}),
}


@pytest.mark.parametrize("name", BOMBS)
def test_any_document_is_read_dumped_and_refused_with_ordinary_errors(
    name: str, tmp_path: Path
) -> None:
    body = BOMBS[name]
    path = log_of(tmp_path / "log", header() + frames(record(body), snapshot(body)))
    found = read_all(path)
    assert [item.packed for item in found] == [body, body]
    for read in (unpack, unpack_frozen, lambda packed: found[0].body):
        with suppress(ValueError):
            read(body)
    json.dumps(to_json(body))


@pytest.mark.parametrize("name", BOMBS)
def test_any_payload_is_a_record_or_damage(name: str, tmp_path: Path) -> None:
    payload = BOMBS[name] or b"\0"
    content = header() + frames((RECORDS, payload), (SNAPSHOT, payload), record(b"\xc0"))
    found = read_all(log_of(tmp_path / "log", content))
    assert [item.lsn for item in found] == [3]


def colliding(count: int) -> bytes:
    """A map whose keys, timestamps, have one hash; Python's hash of numbers is no secret."""
    keys: list[bytes] = []
    mask, p1, p2, p5 = (
        (1 << 64) - 1,
        11400714785074694791,
        14029467366897019727,
        2870177450012600261,
    )
    inverse = pow(p1, -1, 1 << 64)
    rotated = 0x123456789ABCDEF  # the accumulator after the first lane, for all of them
    ns = 0
    while len(keys) < count:
        # hash((seconds, ns)): two rounds of xxHash. Choose seconds so that ns does not matter.
        ns += 1
        target = (rotated - ns * p2) & mask
        before = target * inverse & mask
        acc = ((before >> 31) | (before << 33)) & mask
        seconds = (acc - p5) * pow(p2, -1, 1 << 64) & mask
        if seconds < (1 << 61) - 1:
            keys.append(b"\xc7\x0c\xff" + ns.to_bytes(4, "big") + seconds.to_bytes(8, "big"))
    return b"\xdf" + count.to_bytes(4, "big") + b"".join(key + b"\xc0" for key in keys)


def test_keys_that_collide_on_purpose_are_refused_unhashed() -> None:
    packed = colliding(400)
    keys = msgpack.unpackb(b"\xdc\x03\x20" + packed[5:], strict_map_key=False)[::2]
    assert len({hash(key) for key in keys}) == 1, "the test forges them rightly"
    with pytest.raises(ValueError, match="timestamps as keys"):
        unpack(packed)
    with pytest.raises(ValueError, match="timestamps as keys"):
        unpack_frozen(packed)
    assert to_json(packed)


# -- frames, footers and marks with impossible numbers


def test_records_that_claim_to_be_four_billion_are_no_frame(tmp_path: Path) -> None:
    many = encode_frame(SALT, RECORDS, (1 << 32) - 1, record(b"\xc0")[1], (1, 0, 0))
    assert frame_at(many, 0, SALT) is None
    path = log_of(tmp_path / "log", header() + many + frames(record(b"\xc0"), first=1 << 32))
    assert [item.lsn for item in read_all(path)] == [1 << 32]


@pytest.mark.parametrize(
    "content",
    [
        header(first=(1 << 64) - 1) + frames(record(b"\xc0"), first=(1 << 63)),
        header(first=(1 << 63) - 1) + frames(record(b"\xc0"), first=(1 << 63) - 1),
        header(epoch=(1 << 64) - 1) + frames(record(b"\xc0")),
        header(epoch=(1 << 48) - 1) + frames(record(b"\xc0")),
        header() + encode_frame(SALT, RECORDS, 1, record(b"\xc0")[1], (1, (1 << 64) - 1, 0)),
        header() + encode_frame(SALT, RECORDS, 1, record(b"\xc0")[1], (2, (1 << 63) - 2, 0)),
    ],
    ids=["first LSN", "last LSN", "epoch", "last epoch", "durable", "durable ahead"],
)
def test_numbers_that_no_log_gets_to_end_in_an_error_of_ours(
    content: bytes, tmp_path: Path
) -> None:
    try:
        read_all(log_of(tmp_path / "log", content))
    except LogError as exc:
        assert "forged" in str(exc)


def test_headers_and_frames_beyond_the_limits_are_none() -> None:
    payload = record(b"\xc0")[1]
    assert decode_segment_header(header(first=(1 << 63) - 1)) is not None
    for beyond in (header(first=1 << 63), header(first=0), header(epoch=1 << 48)):
        assert decode_segment_header(beyond) is None
    for lsn, durable in ((1 << 63, 0), (1, 1 << 63)):
        assert frame_at(encode_frame(SALT, RECORDS, 1, payload, (lsn, durable, 0)), 0, SALT) is None


@pytest.mark.parametrize("kind", ["", "k" * 256])
def test_a_kind_that_is_no_word_is_damage(kind: str, tmp_path: Path) -> None:
    payload = msgpack.packb([1, kind, b"\xc0"])
    with_digest = msgpack.packb([1, kind, b"\xc0", xxhash.xxh3_128_digest(b"\xc0")])
    content = header() + frames((RECORDS, payload), (SNAPSHOT, with_digest), record(b"\xc0"))
    assert [item.lsn for item in read_all(log_of(tmp_path / "log", content))] == [3]


def test_nothing_is_allocated_for_what_is_not_there() -> None:
    """Arrays in arrays that each say half a million, 4 GB of room, in half a megabyte."""
    packed = BOMBS["arrays that say the whole"]
    tracemalloc.start()
    try:
        for read in (unpack, unpack_frozen, to_json):
            with suppress(ValueError):
                read(packed)
        assert tracemalloc.get_traced_memory()[1] < 50 << 20
    finally:
        tracemalloc.stop()


def test_a_mark_that_no_log_gets_to_is_ignored_or_refused(tmp_path: Path) -> None:
    for durable in ((1 << 64) - 1, (1 << 63) - 1, 1 << 50):
        path = log_of(tmp_path / f"{durable}", header() + frames(record(b"\xc0")))
        (path / "MARK").write_bytes(encode_mark(LOG_ID, 1, DurableMark(durable, durable)))
        try:
            assert [item.lsn for item in read_all(path)] == [1]
        except LogError as exc:
            assert "forged" in str(exc)


@pytest.mark.parametrize("number", [(1 << 32) - 1, 1 << 32, 9_999_999_999])
def test_a_segment_number_that_no_log_gets_to(number: int, tmp_path: Path) -> None:
    path = log_of(tmp_path / "log", header() + frames(record(b"\xc0")))
    (path / f"{number:08d}.seg").write_bytes(b"junk")
    if number >= 1 << 32:
        assert segment_number(f"{number:08d}.seg") is None
        read_all(path)
    else:
        with pytest.raises(LogError, match="Move that file away"), EventLog.open(path) as log:
            log.append("event", 1)


def sealed(index: list[Any], more: tuple[tuple[int, bytes], ...] = ()) -> bytes:
    """A segment with two records and a footer that says what it likes."""
    content = header() + frames(record(b"\xc0"), record(b"\x01"), *more)
    body = msgpack.packb([True, index, b"d" * 16])
    body = body.ljust(padded(len(body)), b"\0") + encode_trailer(SALT, len(content))
    marks = (3 + len(more), 2, 0)
    return content + encode_frame(SALT, FOOTER, 0, body, marks)


@pytest.mark.parametrize(
    "index",
    [
        [1, 64, 2, 65],
        [1, 64, 2, 1 << 63],
        [1, 0],
        [2, 64],
        [0, 64],
        [-5, 64],
        [1, 64, 2, 64],
        [(1 << 64) - 1, 64],
        [1, True],
        ["1", 64],
        [1, 64] * 200_000,
        [part for n in range(200_000) for part in (n + 1, 64)],
        {},
        None,
    ],
    ids=range(14),
)
def test_an_index_that_points_anywhere_costs_no_record(index: Any, tmp_path: Path) -> None:
    path = log_of(tmp_path / "log", sealed(index))
    with EventLog.read(path) as reader:
        assert [item.lsn for item in reader.records(start=2)] == [2]
        assert set(reader.fetch({1, 2})) == {1, 2}
    assert [item.lsn for item in read_all(path)] == [1, 2]


def test_a_trailer_that_points_anywhere_costs_no_record(tmp_path: Path) -> None:
    for offset in (0, 1, 8, 64, 10**6, (1 << 64) - 1):
        content = sealed([1, 64])[:-16] + encode_trailer(SALT, offset)
        assert [r.lsn for r in read_all(log_of(tmp_path / str(offset), content))] == [1, 2]


# -- checkpoints


class Log:
    """Records by LSN, and how many were asked for."""

    def __init__(self, *items: tuple[int, bytes]) -> None:
        from eventlog.format.record import Record, Snapshot

        self.records: dict[int, Any] = {}
        self.asked = 0
        for lsn, (kind, payload) in enumerate(items, 1):
            _, word, body = msgpack.unpackb(payload)[:3]
            make = Snapshot if kind == SNAPSHOT else Record
            self.records[lsn] = make(lsn, word, 1, body)

    def fetch(self, lsns: set[int]) -> dict[int, Any]:
        self.asked += len(lsns)
        return {lsn: self.records[lsn] for lsn in lsns if lsn in self.records}


def checkpoint(**changes: Any) -> bytes:
    body = {
        "version": 1,
        "checkpoint_id": "c",
        "run_id": "run",
        "step": 1,
        "timestamp": 1.0,
        "recoveries": 0,
        "prologue": [],
        "index": 1,
        "bases": [],
        "keep": 0,
        "messages": [],
        "state": {},
        "tool_results": None,
        "carried": {},
    } | changes
    body.setdefault("checksum", state.checksum("run", 1, {}, (b"", b"")))
    return bytes(pack(body, "body"))


@pytest.mark.parametrize(
    "changes",
    [
        {"bases": [3]},
        {"bases": [2, 1]},
        {"bases": [1] * 1_000_000},
        {"bases": list(range(1, 3)) * 2},
        {"bases": ESCAPES},
        {"bases": [0]},
        {"bases": [True]},
        {"prologue": [99]},
        {"prologue": {1: 2}},
        {"step": "1"},
        {"step": -1},
        {"index": "1"},
        {"keep": -1},
        {"keep": None},
        {"messages": {}},
        {"messages": [Ref(3, 0)]},
        {"messages": [Ref(1, 0)]},
        {"messages": [Ref(2, 10**9)]},
        {"state": {"a": 3}},
        {"state": {"a": 2}},
        {"state": {"a": [1, 2]}},
        {"state": [1]},
        {"timestamp": "now"},
        {"version": ESCAPES * 1000},
        {"checksum": ESCAPES * 1000},
    ],
    ids=lambda changes: f"{next(iter(changes))}",
)
def test_a_checkpoint_that_makes_no_sense_is_passed_over_with_a_clean_reason(
    changes: dict[str, Any],
) -> None:
    log = Log(record(b"\xc0"), snapshot(checkpoint()), snapshot(checkpoint(**changes)))
    with pytest.raises(BrokenCheckpointError) as caught:
        restore(log.fetch, log.records[3])
    assert str(caught.value).isprintable() and len(str(caught.value)) < 300
    assert log.asked < 10


def test_a_message_that_is_named_a_hundred_thousand_times_is_there_once() -> None:
    """A small log whose conversation would be 2 GB."""
    kind, body = encode(CallReturned(1, "x" * 20_000))
    named = [Ref(1, 0)] * 100_000
    log = Log(record(body, kind), snapshot(checkpoint(messages=named)))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(BrokenCheckpointError, match="checksum"):
        restore(log.fetch, log.records[2])
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10
    assert grown < 1 << 28
    assert log.asked <= 2


def test_references_are_followed_once_and_not_in_circles() -> None:
    """A reference stands for the value that it names, whatever that holds: no more is resolved."""
    kind, one = encode(CallReturned(1, [Ref(2, 0)] * 3))
    _, two = encode(CallReturned(2, [Ref(1, 0)] * 3))
    log = Log(record(one, kind), record(two, kind), snapshot(checkpoint(messages=[Ref(1)])))
    with pytest.raises(BrokenCheckpointError, match="checksum"):
        restore(log.fetch, log.records[3])
    assert log.asked == 1


async def _nothing(run: Any) -> str:
    run.messages.append("first")
    async for _ in run.steps():
        return "done"
    return ""


@pytest.mark.parametrize(
    "events",
    [
        [CallReturned(99, 1)],
        [CallReturned(-1, 1)],
        [MessagesChanged(0, 0, [Ref(1, 0)])],
        [MessagesChanged(0, 0, [Ref(2, 0)])],
        [MessagesChanged(5, -7, [Ref(77, 1 << 40)] * 10)],
        [RunStarted("run", "task", "another uid")] * 3,
        [RunStarted("other run", ESCAPES, "uid")],
    ],
    ids=range(7),
)
def test_a_forged_record_of_a_run_ends_in_an_error_of_ours(
    events: list[Any], tmp_path: Path
) -> None:
    items = []
    for event in [RunStarted("run", "task", "uid"), *events]:
        kind, body = encode(event)
        items.append(record(body, kind))
    log_of(tmp_path / "run", header() + frames(*items))
    agent = RecoverableAgent(_nothing, CheckpointStore(tmp_path))
    try:
        result = agent.run_with_recovery_sync("task", "run")
    except Exception as exc:
        assert type(exc).__module__.split(".")[0] in ("recovery", "eventlog"), repr(exc)
    else:
        assert result["result"] == "done"


# -- directories


def sound(path: Path) -> Path:
    """A log of ours, closed."""
    with EventLog.open(path) as log:
        log.append("event", {"n": 1})
    return path


def make_fifo(path: Path) -> None:
    os.mkfifo(path)


def make_socket(path: Path) -> None:
    before = Path.cwd()
    os.chdir(path.parent)  # names of sockets are short
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(before)


def make_device(path: Path) -> None:
    try:
        os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 5))  # /dev/zero: it never ends
    except PermissionError:
        pytest.skip("making a device needs rights that this user has not")


def make_link(path: Path) -> None:
    secret = path.parent.parent / "secret"
    secret.write_bytes(header() + frames(record(msgpack.packb("secret"))))
    path.symlink_to(secret)


def make_dangling_link(path: Path) -> None:
    path.symlink_to(path.parent.parent / "nowhere")


def make_link_to_itself(path: Path) -> None:
    path.symlink_to(path.name)


MAKERS = [
    Path.mkdir,
    make_fifo,
    make_socket,
    make_device,
    make_link,
    make_dangling_link,
    make_link_to_itself,
]


@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
@pytest.mark.parametrize("name", ["00000001.seg", "00000002.seg", "MARK", "LOCK"])
def test_what_is_no_regular_file_is_refused_and_left_alone(
    name: str, make: Callable[[Path], None], tmp_path: Path
) -> None:
    path = sound(tmp_path / "log")
    (path / name).unlink(missing_ok=True)
    make(path / name)
    before = sorted(tmp_path.iterdir()), os.lstat(path / name).st_mode
    with pytest.raises(UnsupportedFormatError, match="not a regular file"):
        EventLog.open(path)
    if name != "LOCK":  # which no reader opens
        with pytest.raises(UnsupportedFormatError), EventLog.read(path) as reader:
            list(reader.records())
        for command in ("dump", "verify"):
            code, text = logdump(command, path)
            assert code & 32 and "secret" not in text
    assert before == (sorted(tmp_path.iterdir()), os.lstat(path / name).st_mode)
    assert not (tmp_path / "nowhere").exists()


def test_only_our_own_unfinished_segments_are_removed(tmp_path: Path) -> None:
    path = sound(tmp_path / "log")
    (path / "notes.new").write_text("somebody's own")
    with EventLog.open(path) as log:
        log.append("event", 2)
    assert (path / "notes.new").exists()
    (path / "00000002.seg.a1a2a3a4.new").mkdir()
    with pytest.raises(UnsupportedFormatError, match="not a regular file"):
        EventLog.open(path)


def test_a_hard_link_is_read_and_never_written_to(tmp_path: Path) -> None:
    path = sound(tmp_path / "log")
    os.link(path / "00000001.seg", tmp_path / "elsewhere")
    before = (tmp_path / "elsewhere").read_bytes()
    with EventLog.read(path) as reader:
        assert len(list(reader.records())) == 1
    with pytest.raises(LogError, match="hard links"):
        EventLog.open(path)
    assert (tmp_path / "elsewhere").read_bytes() == before


@pytest.mark.parametrize(
    "make", [make_fifo, make_socket, make_device, make_dangling_link, make_link_to_itself]
)
def test_a_log_directory_that_is_none(make: Callable[[Path], None], tmp_path: Path) -> None:
    (tmp_path / "parent").mkdir()
    path = tmp_path / "parent" / "log"
    make(path)
    for use in (EventLog.open, EventLog.read):
        with pytest.raises((OSError, LogError)):
            use(path)
    assert logdump("verify", path)[0] >= 32
    with pytest.raises((OSError, LogError)):
        EventLog.open(path / "run")


def test_the_directory_itself_may_be_reached_over_a_link_but_a_run_may_not(tmp_path: Path) -> None:
    """A user may keep logs elsewhere; who can write to a store must not send a run elsewhere."""
    sound(tmp_path / "real" / "run")
    (tmp_path / "store").symlink_to(tmp_path / "real")
    assert read_all(tmp_path / "store" / "run")
    (tmp_path / "real" / "other").symlink_to(tmp_path / "real" / "run")
    store = CheckpointStore(tmp_path / "store")
    with pytest.raises(Exception, match="symbolic link"):
        RecoverableAgent(_nothing, store).run_with_recovery_sync("task", "other")


def test_names_that_are_no_text_and_thousands_of_strangers(tmp_path: Path) -> None:
    path = sound(tmp_path / "log")
    for name in (b"\xff\xfe.seg", b"\x1b[2J.seg", b"00000002.seg\xff", b"-rf", b"0000000\xb2.seg"):
        Path(os.fsdecode(os.fsencode(path) + b"/" + name)).touch()
    for n in range(3000):
        (path / f"junk{n}").touch()
    assert [item.lsn for item in read_all(path)] == [1]


def test_thousands_of_segments_of_others_are_each_looked_at_a_few_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from eventlog.files import posix

    path = sound(tmp_path / "log")
    foreign = SegmentHeader(1, bytes(16), 1, 1, 1, SALT).encode()
    for n in range(2, 1002):
        (path / segment_name(n)).write_bytes(b"junk" if n % 2 else foreign)
    opened = 0
    original = posix.OSDirectory.open

    def counted(self: Any, name: str, **how: bool) -> Any:
        nonlocal opened
        opened += 1
        return original(self, name, **how)

    monkeypatch.setattr(posix.OSDirectory, "open", counted)
    with EventLog.read(path) as reader:
        assert [item.lsn for item in reader.records(on_damage=lambda damage: None)] == [1]
    assert opened < 10 * 1000


def test_strangers_in_a_new_directory_are_named_without_control_characters(tmp_path: Path) -> None:
    (tmp_path / "\x1b[2Jevil").touch()
    with pytest.raises(UnsupportedFormatError) as caught:
        EventLog.open(tmp_path)
    assert str(caught.value).isprintable()


def test_what_the_lock_file_says_is_shown_without_control_characters(tmp_path: Path) -> None:
    path = sound(tmp_path / "log")
    held = EventLog.open(path)
    owner = json.dumps({"epoch": 2, "pid": 1, "host": ESCAPES, "since": ESCAPES})
    for content in (owner, "[" * 512, '{"epoch": "x", "pid": "y"}', "null", "\xff"):
        (path / "LOCK").write_bytes(content.encode().ljust(511) + b"\n")
        with pytest.raises(LogError) as caught:
            held.commit() if content == owner else EventLog.open(path, takeover=False)
        assert str(caught.value).isprintable()
    held._release()


def test_a_directory_that_others_can_write_to_is_warned_about_and_works(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = sound(tmp_path / "log")
    assert not caplog.records
    for mode, name in ((0o777, "."), (0o755, "00000001.seg"), (0o700, "00000001.seg")):
        caplog.clear()
        path.chmod(mode)
        (path / name).chmod(mode if name == "." else 0o666)
        EventLog.open(path).close()
        assert ("can be changed by others" in caplog.text) == (mode != 0o700)
        path.chmod(0o700)
        (path / "00000001.seg").chmod(0o600)


def test_new_files_are_for_their_owner_alone_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        path = sound(tmp_path / "store" / "log")
    finally:
        os.umask(before)
    for made in (path.parent, path):
        assert stat.S_IMODE(made.stat().st_mode) == 0o700
    assert {stat.S_IMODE(file.stat().st_mode) for file in path.iterdir()} == {0o600}


# -- files of any size, and files that change

SCRIPT = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
from eventlog import EventLog
from logdump import main
with EventLog.read(sys.argv[1]) as reader:
    assert [r.lsn for r in reader.records(on_damage=lambda damage: None)] == [1]
    list(reader.snapshots())
main(["dump", sys.argv[1]])
main(["verify", sys.argv[1]])
with EventLog.open(sys.argv[1]) as log:
    assert log.append("event", 2) == 2
"""


@pytest.mark.parametrize(
    "names", [["00000001.seg"], ["99999999.seg", "MARK", "LOCK", "stranger"]], ids=len
)
def test_sparse_files_of_a_terabyte_take_a_gibibyte_at_most(
    names: list[str], tmp_path: Path
) -> None:
    path = sound(tmp_path / "log")
    for name in names:
        with (path / name).open("ab") as file:
            file.write(b"junk" if name in ("99999999.seg", "stranger") else b"")
            try:
                file.truncate(1 << 40)
            except OSError as exc:
                pytest.skip(f"this file system has no file of a terabyte: {exc}")
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(path)],
        capture_output=True,
        timeout=120,
        check=False,
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tools'}"},
    )
    assert done.returncode == 0, done.stderr.decode()[-2000:]


def test_a_segment_that_shrinks_or_vanishes_while_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from eventlog.files import posix

    original = posix.OSFile.pread
    for keep in (0, 10, 64, 100, None):
        path = sound(tmp_path / f"log{keep}")
        segment = path / "00000001.seg"

        def shrinking(self: Any, size: int, offset: int) -> bytes:
            if size > 64 and segment.exists():  # noqa: B023 - used before the loop goes on
                os.truncate(segment, keep) if keep is not None else segment.unlink()  # noqa: B023
            return original(self, size, offset)

        monkeypatch.setattr(posix.OSFile, "pread", shrinking)
        damaged: list[Any] = []
        with EventLog.read(path) as reader:
            found = list(reader.records(on_damage=damaged.append))
        assert found or damaged or keep is None
        assert logdump("verify", path)[0] < 64
        monkeypatch.undo()


# -- what reaches terminals and log files


def test_nothing_in_a_log_reaches_a_terminal_raw(tmp_path: Path) -> None:
    body = msgpack.packb({ESCAPES: [ESCAPES, {"$map": ESCAPES}, ESCAPES.encode()]})
    items = (record(body, ESCAPES), record(body), snapshot(body), record(b"\xc1"))
    path = log_of(tmp_path / "log", header() + frames(*items))
    for args in (("dump",), ("dump", "--json"), ("verify",), ("verify", "--json")):
        _, text = logdump(*args, path)
        assert all(line.isprintable() for line in text.split("\n"))
        assert "forged line" not in [line.strip() for line in text.split("\n")]


def test_nothing_in_a_log_reaches_an_error_or_a_log_line_raw(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kind, started = encode(RunStarted("run", "task", "uid"))
    bad = snapshot(checkpoint(version=ESCAPES))
    unreadable = record(msgpack.packb({"run_id": ESCAPES, "task": 1, "uid": {ESCAPES: 1}}), kind)
    log_of(tmp_path / "run", header() + frames(record(started, kind), bad, unreadable))
    agent = RecoverableAgent(_nothing, CheckpointStore(tmp_path))
    with pytest.raises(DamagedRunError) as caught:
        agent.run_with_recovery_sync("task", "run")
    assert all(line.isprintable() for line in str(caught.value).split("\n"))
    for line in caplog.messages:
        assert line.isprintable()
    with EventLog.open(tmp_path / "other") as log:
        log.append("event", Packed(b"\xc1"))
        with pytest.raises(ValueError, match="not a msgpack document"):
            _ = next(log.records()).body
