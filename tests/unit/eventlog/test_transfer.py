"""export and import of logs: damage, bad input, crashes, what is in the way."""

from __future__ import annotations

import errno
import io
import json
import tracemalloc
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from eventlog import EventLog, LogError, Packed
from eventlog.dump import BAD_SNAPSHOT, DAMAGED, MISSING, TORN, Finding, verify
from eventlog.encryption import Encryption
from eventlog.errors import EncryptedLogError, UnsupportedFormatError
from eventlog.format.export_lines import JSON_SIZE_MAX, LINE_SIZE_MAX
from eventlog.format.frame import HEADER_SIZE
from eventlog.repair import LOST, REPAIRED, repair
from eventlog.testing import Crash, SimulatedDisk
from eventlog.transfer import BadExportError, Imported, export, import_
from tests.support.paths import ROOT

KEY = Encryption(bytes(range(32)))
SEGMENT_SIZE = 900

Json = dict[str, Any]


def log_on(disk: SimulatedDisk, path: str = "log", records: int = 20, **options: Any) -> None:
    options.setdefault("segment_size", SEGMENT_SIZE)
    with EventLog.open(path, files=disk, **options) as log:
        for i in range(records):
            if i % 5 == 3:
                log.append_batch([("part", {"i": i}), ("part", [i]), ("part", None)])
            elif i % 7 == 5:
                log.append_snapshot({"upto": i})
            else:
                log.append("event", {"i": i, "text": "x" * 60})


def exported(disk: SimulatedDisk, path: str = "log", key: Encryption | None = None) -> bytes:
    with EventLog.read(path, files=disk, encryption=key) as reader:
        return b"".join(line.encode() + b"\n" for line in export(reader))


def objects(lines: bytes) -> list[Json]:
    return [json.loads(line) for line in lines.splitlines()]


def text(lines: list[Json]) -> bytes:
    """Lines as an export has them, with the right digest at the end, whatever is in them."""
    body = b"".join(json.dumps(line, separators=(",", ":")).encode() + b"\n" for line in lines)
    records = sum(line.get("type") in ("record", "snapshot") for line in lines)
    end = {"type": "end", "records": records, "lost": 0, "sha256": sha256(body).hexdigest()}
    return body + json.dumps(end, separators=(",", ":")).encode() + b"\n"


def imported(lines: bytes, disk: SimulatedDisk | None = None, **options: Any) -> Imported:
    return import_(io.BytesIO(lines), "new", files=disk or SimulatedDisk(), **options)


HEAD = {"type": "export", "format": "agent-eventlog", "version": 1}
LOG = {"type": "log", "name": "", "oldest_lsn": 1}


def record(lsn: int, **fields: Any) -> Json:
    return {"type": "record", "lsn": lsn, "time_ns": 5, "kind": "k", "body": lsn} | fields


# -- what an export says


def test_an_export_says_what_it_is_what_is_in_the_log_and_that_it_is_whole() -> None:
    disk = SimulatedDisk()
    with EventLog.open("log", files=disk) as log:
        log.append("a", {"é": "\x1b[2J"}, time_ns=7)
        log.append_batch([("b", b"\x00"), ("c", [1.5, float("nan")])])
        log.append_snapshot("state")
    lines = exported(disk)
    first, of_log, one, two, three, snapshot, end = objects(lines)
    assert (first, of_log) == (HEAD, LOG)
    assert one == {"type": "record", "lsn": 1, "time_ns": 7, "kind": "a", "body": {"é": "\x1b[2J"}}
    assert two["batch"] == three["batch"] == [2, 3] and two["time_ns"] == three["time_ns"]
    assert (two["body"], three["body"]) == ({"$bytes": "AA=="}, [1.5, {"$float": "nan"}])
    assert (snapshot["type"], snapshot["lsn"], snapshot["body"]) == ("snapshot", 4, "state")
    body = lines[: lines.rindex(b'{"type":"end"')]
    assert end == {"type": "end", "records": 4, "lost": 0, "sha256": sha256(body).hexdigest()}
    assert not any(c < 32 for c in lines.replace(b"\n", b""))


def test_the_example_in_the_docs_is_what_is_written() -> None:
    disk = SimulatedDisk(seed=1)
    with EventLog.open("log", files=disk) as log:
        log.append("greeting", {"text": "hello"})
        log.append_batch([("number", 1), ("number", 2.5)])
        log.append_snapshot(["hello", 3.5])
        log.commit()
    page = (ROOT / "docs" / "format.md").read_text()
    assert exported(disk).decode() in page
    assert f"longer than {LINE_SIZE_MAX >> 20} MiB" in page
    assert f"more than {JSON_SIZE_MAX >> 20} MiB" in page


def test_a_truncated_log_begins_where_it_began_also_when_nothing_is_left() -> None:
    disk = SimulatedDisk()
    log_on(disk)
    for before in (13, None):
        with EventLog.open("log", files=disk, segment_size=SEGMENT_SIZE) as log:
            last = log.last_lsn
            oldest = log.truncate_before(before or last + 1)
        lines = exported(disk)
        assert objects(lines)[1]["oldest_lsn"] == oldest > 1
        made = SimulatedDisk()
        imported(lines, made)
        assert exported(made, "new") == lines
        with EventLog.read("new", files=made) as reader:
            assert list(verify(reader)) == []
        with EventLog.open("new", files=made) as log:
            assert (log.oldest_lsn, log.append("more", 1)) == (oldest, last + 1)
            assert log.report.damaged == ()
    assert objects(lines)[2]["type"] == "end", "nothing was left"


def test_large_bodies_are_not_taken_apart() -> None:
    disk = SimulatedDisk()
    with EventLog.open("log", files=disk) as log:
        log.append("small", [1] * 1000)
        log.append("large", [1] * JSON_SIZE_MAX)
    lines = exported(disk)
    small, large = objects(lines)[2:4]
    assert small["body"] == [1] * 1000 and list(large["body"]) == ["$msgpack"]
    made = SimulatedDisk()
    imported(lines, made)
    assert exported(made, "new") == lines


def test_an_export_of_what_is_encrypted_needs_the_key_and_an_import_can_encrypt() -> None:
    disk, made = SimulatedDisk(), SimulatedDisk()
    log_on(disk, encryption=KEY)
    with pytest.raises(EncryptedLogError):
        exported(disk)
    lines = exported(disk, key=KEY)
    imported(lines, made, encryption=KEY)
    assert exported(made, "new", KEY) == lines
    contents = [bytes(file.content) for file in made.directories["new"].values()]
    assert not any(b"xxxx" in content for content in contents) and len(contents) > 2
    clear = SimulatedDisk()
    imported(lines, clear)
    assert exported(clear, "new") == lines


def test_a_log_within_the_log_comes_along() -> None:
    disk, made = SimulatedDisk(), SimulatedDisk()
    log_on(disk)
    log_on(disk, "log/inbox", 3)

    def both(disk: SimulatedDisk, path: str) -> bytes:
        with (
            EventLog.read(path, files=disk) as log,
            EventLog.read(f"{path}/inbox", files=disk) as box,
        ):
            return b"".join(line.encode() + b"\n" for line in export(log, [("inbox", box)]))

    lines = both(disk, "log")
    names = [line["name"] for line in objects(lines) if line["type"] == "log"]
    assert names == ["", "inbox"]
    imported(lines, made)
    assert both(made, "new") == lines
    assert sorted(made.directories) == ["new", "new/inbox"]


def test_what_is_no_log_cannot_be_exported() -> None:
    disk = SimulatedDisk()
    log_on(disk, records=1)
    disk.directories["log"]["00000001.seg"].content[8] = 9  # the version; the CRC is now wrong
    from zlib import crc32

    content = disk.directories["log"]["00000001.seg"].content
    content[60:64] = crc32(bytes(content[:60])).to_bytes(4, "little")
    with pytest.raises(UnsupportedFormatError):
        exported(disk)


def test_a_live_log_is_exported_and_one_that_is_truncated_meanwhile_is_not() -> None:
    disk = SimulatedDisk()
    log_on(disk)
    with EventLog.open("log", files=disk, segment_size=SEGMENT_SIZE) as log:
        log.append("not committed", 1)
        assert objects(exported(disk))[-2]["kind"] == "not committed"
        with EventLog.read("log", files=disk) as reader:
            lines = export(reader)
            assert [json.loads(next(lines))["type"] for _ in range(3)][-1] == "record"
            log.truncate_before(log.last_lsn - 1)
            with pytest.raises(LogError, match="export it again"):
                list(lines)
            assert objects(b"".join(line.encode() + b"\n" for line in export(reader)))


# -- damage


def broken(harm: Callable[[SimulatedDisk], None]) -> tuple[list[Json], list[Finding], bytes]:
    disk = SimulatedDisk()
    log_on(disk)
    harm(disk)
    found: list[Finding] = []
    with EventLog.read("log", files=disk) as reader:
        lines = b"".join(line.encode() + b"\n" for line in export(reader, on_finding=found.append))
    return objects(lines), found, lines


def flip(disk: SimulatedDisk, number: int, at: int) -> None:
    disk.directories["log"][f"{number:08d}.seg"].content[at] ^= 1


def flip_all(disk: SimulatedDisk, numbers: tuple[int, ...]) -> None:
    for number in numbers:
        flip(disk, number, HEADER_SIZE + 60)


def test_lost_records_are_a_line_in_their_place_and_are_not_imported() -> None:
    lines, found, raw = broken(lambda disk: flip(disk, 2, HEADER_SIZE + 60))
    place = next(i for i, line in enumerate(lines) if line["type"] == "lost")
    lost = lines[place]
    assert lines[place - 1]["lsn"] + 1 == lost["first_lsn"] <= lost["last_lsn"]
    assert lines[place + 1]["lsn"] == lost["last_lsn"] + 1
    assert "lost" in lost["text"] and lines[-1]["lost"] == lost["last_lsn"] - lost["first_lsn"] + 1
    assert [finding.bit for finding in found] == [DAMAGED]
    disk = SimulatedDisk()
    with pytest.raises(BadExportError, match="logdump repair") as caught:
        imported(raw, disk)
    assert caught.value.line == place + 1 and disk.directories == {}


@pytest.mark.parametrize("number", [1, 2, 99])
def test_a_missing_segment_is_lost_records(number: int) -> None:
    def remove(disk: SimulatedDisk) -> None:
        names = sorted(name for name in disk.directories["log"] if name.endswith(".seg"))
        del disk.directories["log"][names[min(number, len(names)) - 1]]

    lines, found, _ = broken(remove)
    assert any(finding.bit & (MISSING | DAMAGED) for finding in found)
    lsns = [line["lsn"] for line in lines if "lsn" in line]
    [lost] = [line for line in lines if line["type"] == "lost"]
    whole = set(lsns) | set(range(lost["first_lsn"], lost["last_lsn"] + 1))
    assert whole == set(range(1, 29)) and len(lsns) + lines[-1]["lost"] == 28


def test_a_bad_snapshot_is_lost_and_of_a_bad_header_nothing_is() -> None:
    disk = SimulatedDisk()
    with EventLog.open("log", files=disk) as log:
        log.append("a", 1)
        log.append_snapshot("x" * 50)
    content = disk.directories["log"]["00000001.seg"].content
    at = content.find(b"xxxx")
    for where, bit, lost in ((at, BAD_SNAPSHOT, 1), (50, DAMAGED, 0)):
        content[where] ^= 1
        found: list[Finding] = []
        with EventLog.read("log", files=disk) as reader:
            lines = [json.loads(line) for line in export(reader, on_finding=found.append)]
        content[where] ^= 1
        assert found and found[0].bit == bit and lines[-1]["lost"] == lost
        assert [line["type"] for line in lines].count("lost") == lost


def kinds_of(disk: SimulatedDisk, path: str) -> list[tuple[int, str, Any]]:
    with EventLog.read(path, files=disk) as reader:
        assert list(verify(reader)) == []
        return [(record.lsn, record.kind, record.body) for record in reader.records()]


@pytest.mark.parametrize(
    "harm",
    [
        lambda disk: flip(disk, 2, HEADER_SIZE + 60),
        lambda disk: disk.directories["log"].pop("00000001.seg"),
        lambda disk: disk.directories["log"].pop("00000002.seg"),
        lambda disk: flip_all(disk, (1, 2, 3)),
    ],
    ids=["a frame", "the first segment", "a segment", "several frames"],
)
def test_what_was_lost_can_be_marked_as_a_repair_marks_it(
    harm: Callable[[SimulatedDisk], Any],
) -> None:
    disk, made = SimulatedDisk(), SimulatedDisk()
    log_on(disk)
    harm(disk)
    lines = exported(disk)
    done = imported(lines, made, lost="marked")
    assert done.lost == objects(lines)[-1]["lost"] > 0
    repair("log", files=disk)
    found, repaired = kinds_of(made, "new"), kinds_of(disk, "log")
    assert found[:-1] == repaired[:-1]
    assert {kind for _, kind, _ in found} >= {LOST, REPAIRED}
    told, wanted = found[-1], repaired[-1]
    assert told[:2] == wanted[:2]
    assert [told[2][key] for key in ("lost", "snapshots")] == [
        wanted[2][key] for key in ("lost", "snapshots")
    ]
    again = exported(made, "new")
    third = SimulatedDisk()
    assert imported(again, third).lost == 0
    assert exported(third, "new") == again


def test_many_lost_records_are_marked_in_several_batches() -> None:
    body = text([HEAD, LOG, {"type": "lost", "first_lsn": 1, "last_lsn": 9000, "text": ""}])
    lines = body.replace(b'"lost":0', b'"lost":9000')
    disk = SimulatedDisk()
    assert imported(lines, disk, lost="marked") == Imported(9001, 9000)
    found = kinds_of(disk, "new")
    assert [kind for _, kind, _ in found] == [LOST] * 9000 + [REPAIRED]
    starts = [(lsn, body["last"]) for lsn, _, body in found[:-1] if body["last"]]
    assert starts == [(1, 4096), (4097, 8192), (8193, 9000)]


def test_a_lost_snapshot_is_marked_as_one() -> None:
    disk, made = SimulatedDisk(), SimulatedDisk()
    with EventLog.open("log", files=disk) as log:
        log.append("a", 1)
        log.append_snapshot("x" * 50)
        log.append("b", 2)
    content = disk.directories["log"]["00000001.seg"].content
    content[content.find(b"xxxx")] ^= 1
    imported(exported(disk), made, lost="marked")
    found = kinds_of(made, "new")
    assert found[1] == (2, LOST, {"last": 2, "snapshot": True})
    assert found[3][2]["snapshots"] == [2] and found[3][2]["lost"] == [[2, 2]]


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ({"first_lsn": 2, "last_lsn": 3}, "LSN 2 is not what comes next"),
        ({"first_lsn": 1, "last_lsn": 1 << 40}, "more than"),
        ({"first_lsn": 1, "last_lsn": 0}, "last_lsn"),
    ],
)
def test_losses_that_make_no_sense_are_not_marked(line: Json, what: str) -> None:
    lines = text([HEAD, LOG, {"type": "lost"} | line | {"text": ""}])
    disk = SimulatedDisk()
    with pytest.raises(BadExportError, match=what):
        imported(lines, disk, lost="marked")
    assert disk.directories == {}


def test_a_torn_tail_is_no_loss() -> None:
    disk = SimulatedDisk()
    log = EventLog.open("log", files=disk)
    for i in range(5):
        log.append("event", {"text": "x" * 60, "i": i})
    log._release()
    del disk.directories["log"]["00000001.seg"].content[-5000:]
    content = disk.directories["log"]["00000001.seg"].content
    del content[content.rfind(b"xxxx") :]
    found: list[Finding] = []
    with EventLog.read("log", files=disk) as reader:
        lines = list(export(reader, on_finding=found.append))
    assert [finding.bit for finding in found] == [TORN]
    assert [json.loads(line)["type"] for line in lines] == ["export", "log", *["record"] * 4, "end"]
    made = SimulatedDisk()
    imported(("\n".join(lines) + "\n").encode(), made)
    assert exported(made, "new").decode().splitlines() == lines


# -- bad input

BATCH = [record(1, batch=[1, 2]), record(2, batch=[1, 2])]


@pytest.mark.parametrize(
    ("lines", "line", "what"),
    [
        ([], 1, "no export"),
        ([{"type": "record"}], 1, "no export"),
        ([HEAD | {"version": 2}, LOG], 1, "newer library"),
        ([HEAD | {"format": "other"}, LOG], 1, "no export"),
        ([HEAD], 2, "holds no log"),
        ([HEAD, record(1)], 2, "before the line of its log"),
        ([HEAD, LOG | {"name": "inbox"}], 2, "out of place"),
        ([HEAD, LOG, LOG], 3, "out of place"),
        ([HEAD, LOG, LOG | {"name": "../x"}], 3, "cannot be the name"),
        ([HEAD, LOG, LOG | {"name": "LOCK"}], 3, "cannot be the name"),
        ([HEAD, LOG | {"oldest_lsn": 0}], 2, "oldest_lsn"),
        ([HEAD, LOG | {"oldest_lsn": 1 << 63}], 2, "oldest_lsn"),
        ([HEAD, LOG, record(2)], 3, "LSN 2 where 1 comes next"),
        ([HEAD, LOG, record(1), record(1)], 4, "LSN 1 where 2 comes next"),
        ([HEAD, LOG | {"oldest_lsn": 5}, record(1)], 3, "LSN 1 where 5 comes next"),
        ([HEAD, LOG, record(1), record(3)], 4, "LSN 3 where 2 comes next"),
        ([HEAD, LOG, record(1, time_ns="1")], 3, "time_ns"),
        ([HEAD, LOG, record(1, time_ns=1 << 64)], 3, "time_ns"),
        ([HEAD, LOG, record(1, time_ns=True)], 3, "time_ns"),
        ([HEAD, LOG, record(1, kind="")], 3, "kind"),
        ([HEAD, LOG, record(1, kind="\ud800")], 3, "surrogates"),
        ([HEAD, LOG, record(1, kind="x" * 256)], 3, "kind"),
        ([HEAD, LOG, record(1, body=1 << 65)], 3, "body"),
        ([HEAD, LOG, record(1, body={"$bytes": "?"})], 4, "not written as"),
        ([HEAD, LOG, record(1, body={"$map": [1]})], 4, "not written as"),
        ([HEAD, LOG, record(1, body={"$float": "1"})], 4, "not written as"),
        ([HEAD, LOG, {"type": "record", "lsn": 1, "time_ns": 5, "kind": "k"}], 3, "body"),
        ([HEAD, LOG, record(1, extra=1)], 4, "not written as"),
        ([HEAD, LOG, BATCH[0]], 4, "not whole"),
        ([HEAD, LOG, BATCH[0], LOG | {"name": "inbox"}], 4, "not whole"),
        ([HEAD, LOG, BATCH[0], BATCH[1] | {"time_ns": 6}], 4, "cannot be in a batch"),
        ([HEAD, LOG, BATCH[0], record(2)], 4, "in no batch"),
        ([HEAD, LOG, record(1), record(2, batch=[1, 2])], 4, "in no batch"),
        ([HEAD, LOG, record(1, batch=[2, 3])], 3, "not in the batch"),
        ([HEAD, LOG, record(1, batch="x")], 3, "not in the batch"),
        ([HEAD, LOG, BATCH[0] | {"type": "snapshot"}], 3, "cannot be in a batch"),
        ([HEAD, LOG, {"type": "lost", "first_lsn": 1, "last_lsn": 2, "text": ""}], 3, "repair"),
        ([HEAD, LOG, {"type": "lost", "first_lsn": 2, "last_lsn": 1, "text": ""}], 3, "last_lsn"),
        ([HEAD, LOG, {"type": "\x1b[2J"}], 3, r"type '\\x1b\[2J' has no place"),
    ],
)
def test_bad_lines_are_refused_by_number_and_nothing_is_left(
    lines: list[Json], line: int, what: str
) -> None:
    disk = SimulatedDisk()
    with pytest.raises(BadExportError, match=what) as caught:
        imported(text(lines), disk)
    assert caught.value.line == line and "\n" not in str(caught.value)
    assert disk.directories == {}


def test_what_comes_after_the_last_line_is_refused() -> None:
    lines = text([HEAD, LOG, record(1)])
    assert imported(lines).records == 1
    with pytest.raises(BadExportError, match="line 5 of the export: something comes after"):
        imported(lines + b"x")


class _Endless:
    """A file of one line without an end, that says how much was asked for at once."""

    asked = 0

    def readline(self, size: int, /) -> bytes:
        self.asked = max(self.asked, size)
        return b" " * size


def test_a_line_without_end_is_read_up_to_the_limit() -> None:
    file = _Endless()
    with pytest.raises(BadExportError, match="longer than"):
        import_(file, "new", files=SimulatedDisk())
    assert file.asked == LINE_SIZE_MAX + 1


def test_deep_json_is_refused() -> None:
    deep = b'{"type":"export","x":' + b"[" * 200_000 + b"]" * 200_000 + b"}\n"
    with pytest.raises(BadExportError, match="line 1"):
        imported(deep)


# -- what is in the way, and crashes


def test_an_import_adds_to_nothing(tmp_path: Path) -> None:
    disk = SimulatedDisk()
    log_on(disk)
    lines = exported(disk)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_text("mine")
    (tmp_path / "empty").mkdir()
    (tmp_path / "nested" / "inbox").mkdir(parents=True)
    (tmp_path / "file").write_text("mine")
    for name in ("full", "nested"):
        with pytest.raises(LogError, match="not there yet"):
            import_(io.BytesIO(lines), tmp_path / name)
    with pytest.raises(NotADirectoryError):
        import_(io.BytesIO(lines), tmp_path / "file")
    with pytest.raises(LogError, match="no name"):
        import_(io.BytesIO(lines), tmp_path / "..")
    before = sorted(path.name for path in tmp_path.iterdir())
    assert before == ["empty", "file", "full", "nested"]
    import_(io.BytesIO(lines), tmp_path / "empty")
    import_(io.BytesIO(lines), tmp_path / "new" / "deeper")
    for path in ("empty", "new/deeper"):
        with EventLog.read(tmp_path / path) as reader:
            assert b"".join(line.encode() + b"\n" for line in export(reader)) == lines
        assert (tmp_path / path).stat().st_mode & 0o777 == 0o700
    assert sorted(path.name for path in tmp_path.iterdir()) == [*before, "new"]


def test_somebody_who_was_there_first_keeps_the_name() -> None:
    disk = SimulatedDisk()
    log_on(disk, records=3)
    lines = exported(disk)

    class Meanwhile(io.BytesIO):
        def readline(self, size: int | None = -1, /) -> bytes:
            if not disk.directories.get("new"):
                EventLog.open("new", files=disk).close()
            return super().readline(size)

    with pytest.raises(LogError, match="not there yet"):
        import_(Meanwhile(lines), "new", files=disk)
    assert sorted(disk.directories) == ["log", "new"] and list(disk.directories["new"]) == ["LOCK"]


def test_a_crash_at_every_call_leaves_the_whole_log_or_none_under_its_name() -> None:
    source = SimulatedDisk()
    log_on(source)
    log_on(source, "log/inbox", 2)
    with (
        EventLog.read("log", files=source) as log,
        EventLog.read("log/inbox", files=source) as inbox,
    ):
        lines = b"".join(line.encode() + b"\n" for line in export(log, [("inbox", inbox)]))
    whole = 0
    for call in range(1000):
        disk = SimulatedDisk()
        disk.crash_at(call, call % 50)
        try:
            imported(lines, disk)
            crashed = False
        except Crash:
            crashed = True
        losses = [disk.after_power_loss(seed) for seed in range(4)]
        for after in (disk.after_process_death(), *losses):
            if "new" in after.directories:
                whole += crashed
                assert exported(after, "new") == exported(source)
                assert exported(after, "new/inbox") == exported(source, "log/inbox")
            assert {name for name in after.directories if not name.startswith(".new.")} <= {
                "new",
                "new/inbox",
            }
            imported(lines, after) if "new" not in after.directories else None
            assert exported(after, "new") == exported(source)
        if not crashed:
            break
    assert not crashed and call > 30


@pytest.mark.parametrize("verb", ["write", "sync", "publish", "create", "rename"])
def test_a_failing_disk_leaves_nothing(verb: str) -> None:
    source = SimulatedDisk()
    log_on(source)
    lines = exported(source)
    whole = SimulatedDisk()
    imported(lines, whole)
    for nth in range(whole.calls.count(verb)):
        disk = SimulatedDisk()
        disk.fail_at(verb, nth, errno.ENOSPC)
        with pytest.raises(OSError, match="No space"):
            imported(lines, disk)
        assert disk.directories == {}, nth


def test_neither_way_holds_the_log_in_memory(tmp_path: Path) -> None:
    with EventLog.open(tmp_path / "log", "none", segment_size=32 << 10) as log:
        for _ in range(600):
            log.append("event", Packed(b"\xc5\x10\x00" + b"x" * 4096))
    tracemalloc.start()
    try:
        with (
            EventLog.read(tmp_path / "log") as reader,
            (tmp_path / "export").open("wb") as file,
        ):
            for line in export(reader):
                file.write(line.encode() + b"\n")
        with (tmp_path / "export").open("rb") as file:
            import_(file, tmp_path / "new", segment_size=32 << 10)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1_500_000 < 2_400_000 < (tmp_path / "export").stat().st_size
