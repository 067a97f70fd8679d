"""logdump dump: what it chooses, what it says of a run, bytes, and that it follows a log."""

from __future__ import annotations

import json
import os
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from eventlog import EventLog, LogReader, Packed
from eventlog.dump import dump
from eventlog.encryption import Encryption
from eventlog.read.segment_files import read_segment
from recovery.journal.encoding import encode
from recovery.journal.events import (
    CallFailed,
    CallIntended,
    CallReturned,
    Event,
    RunFinished,
    RunStarted,
    StepStarted,
)
from tests.cli.harness import NOW, RUNS, SGR, call, columns
from tests.data.make_runs import KEY, KEY_ID

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tools'}"}
ENVIRONMENT.pop("PYTHONUNBUFFERED", None)  # which would hide that nothing is flushed
ENVIRONMENT.pop("COLUMNS", None)  # which pytest sets for its workers
PATIENCE_S = 30.0


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(shutil.copytree(RUNS, tmp_path_factory.mktemp("dump") / "runs"))


def lsns(store: Path, *args: str) -> list[int]:
    """The LSNs of the records that are shown."""
    done = call("logdump", "dump", *args, "--json", cwd=store)
    assert done.err == "" or (done.out == "" and "no record to show" in done.err), done
    items = [json.loads(line) for line in done.out.splitlines()]
    return [item["lsn"] for item in items if "lsn" in item]


def records(store: Path, *args: str) -> dict[int, dict[str, Any]]:
    """The records that are shown, by their LSNs."""
    done = call("logdump", "dump", *args, "--json", cwd=store)
    items = [json.loads(line) for line in done.out.splitlines()]
    return {item["lsn"]: item for item in items if "lsn" in item}


class Written:
    """A run's log, written event by event."""

    def __init__(self, path: Path, **options: Any) -> None:
        self.log = EventLog.open(path, **{"durability": "none", **options})

    def __enter__(self) -> Written:
        return self

    def __exit__(self, *exc: object) -> None:
        self.log.close()

    def put(self, event: Event) -> int:
        kind, packed = encode(event)
        return self.log.append(kind, packed)

    def call(self, step: int, tool: str, value: Any = None) -> int:
        intent = CallIntended(str(step), tool, "", bytes(16), 1, "park", [["x"], {}], 3)
        lsn = self.put(intent)
        if isinstance(value, BaseException):
            self.put(CallFailed(lsn, type(value).__name__, str(value)))
        elif value is not None:
            self.put(CallReturned(lsn, value))
        return lsn


def write_run(path: Path, steps: int, **options: Any) -> None:
    with Written(path, **options) as run:
        run.put(RunStarted(path.name, "a task", "u" * 32))
        for step in range(1, steps + 1):
            run.put(StepStarted(step))
            run.call(step, "search", ["y" * 50])
            run.call(step, "send_mail", "sent")
        run.put(RunFinished("done"))


# -- what it says of a run


def test_an_outcome_has_the_step_tool_and_duration_of_its_call(store: Path) -> None:
    shown = records(store, "finished")
    outcome = shown[9 + 2]
    assert {key: outcome[key] for key in ("kind", "step", "tool", "call", "attempt")} == {
        "kind": "outcome",
        "step": 1,
        "tool": "search",
        "call": 9,
        "attempt": 1,
    }
    took = outcome["time_ns"] - shown[9]["time_ns"]
    assert outcome["duration_s"] == took / 1e9
    assert shown[24]["attempt"] == 2  # after one that failed
    assert shown[24]["duration_s"] == (shown[24]["time_ns"] - shown[23]["time_ns"]) / 1e9
    assert "tool" not in shown[3] and shown[3]["step"] == 1


@pytest.mark.parametrize("first", [2, 12, 25, 27, 44, 60])
def test_the_middle_of_a_log_says_the_same_as_all_of_it(store: Path, first: int) -> None:
    whole = records(store, "finished")
    part = records(store, "finished", "--lsn", f"{first}..")
    assert part == {lsn: whole[lsn] for lsn in whole if lsn >= first}


def test_a_step_that_is_not_known_is_not_made_up(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("logdump.rows.WARM_UP", 5)
    with Written(tmp_path / "run", segment_size=4096) as run:
        run.put(RunStarted("run", None, "u"))
        run.put(StepStarted(7))
        for _ in range(100):
            lsn = run.call(7, "search")
        run.put(CallReturned(lsn, 1))
        run.log.append("of_a_later_version", 1)
    shown = records(tmp_path, "run", "--lsn", "104..")
    assert "step" not in shown[104]  # the record says nothing, and what was read neither
    assert records(tmp_path, "run", "--lsn", "103")[103]["step"] == 7  # its call says it
    assert records(tmp_path, "run")[104]["step"] == 7


def test_the_log_of_no_run_has_no_columns_of_runs(tmp_path: Path) -> None:
    with EventLog.open(tmp_path / "log") as log:
        log.append("step", {"of": "a ladder"})
        log.append("call", "hello?")
    done = call("logdump", "dump", "log", cwd=tmp_path)
    assert done.out.splitlines()[0].split() == "LSN TIME (UTC) KIND SIZE VALUE".split()
    assert done.out.splitlines()[2].endswith('"hello?"')
    item = records(tmp_path, "log")[2]
    assert set(item) == {
        "type",
        "segment",
        "offset",
        "lsn",
        "kind",
        "time",
        "time_ns",
        "size",
        "body",
    }


def test_records_that_say_nonsense_of_a_run_are_shown(tmp_path: Path) -> None:
    with Written(tmp_path / "run") as run:
        run.put(RunStarted("run", None, "u"))
        bodies: list[Any] = [
            {},
            {"call": 1},
            {"call": -1, "value": 1},
            [],
            {"call": "x", "value": 1},
        ]
        for body in bodies:
            for kind in (
                "call",
                "outcome",
                "failure",
                "messages",
                "step",
                "run_parked",
                "snapshot",
            ):
                run.log.append(kind, body)
        run.log.append("outcome", Packed(b"\xc1"))
    assert len(records(tmp_path, "run")) == 37
    for options in ((), ("--full",), ("--errors",), ("--raw",)):
        done = call("logdump", "dump", "run", *options, cwd=tmp_path)
        assert (done.code, done.err) == (0, "")


# -- which records


def test_options_choose_records(store: Path) -> None:
    whole = records(store, "finished")
    every = list(whole)
    assert lsns(store, "finished", "--lsn", "17") == [17]
    assert lsns(store, "finished", "--lsn", "17..19") == [17, 18, 19]
    assert lsns(store, "finished", "--lsn", "..3") == [1, 2, 3]
    assert lsns(store, "finished", "--lsn", f"{every[-2]}..") == every[-2:]
    assert lsns(store, "finished", "--lsn", "1000..") == []
    for args, wanted in {
        ("--kind", "outcome"): lambda item: item["kind"] == "outcome",
        ("--kind", "run_*", "--kind", "st?p"): lambda item: item["kind"][:4] in ("run_", "step"),
        ("--tool", "search"): lambda item: item.get("tool") == "search",
        ("--tool", "*_mail", "--kind", "outcome"): lambda item: (
            item.get("tool") == "send_mail" and item["kind"] == "outcome"
        ),
        ("--step", "2..3"): lambda item: item.get("step") in (2, 3),
        ("--step", "..0"): lambda item: item.get("step") == 0,
        ("--grep", "OS51.*23A"): lambda item: item["lsn"] in (29, 31, 32, 33, 52),
        ("--since", "2026-05-04T09:21:00Z"): lambda item: item["time"] >= "2026-05-04T09:21",
        ("--until", "2026-05-04 11:00:06+02:00"): lambda item: (
            item["time"] <= "2026-05-04T09:00:06"
        ),
    }.items():
        chosen = [lsn for lsn, item in whole.items() if wanted(item)]
        assert chosen and lsns(store, "finished", *args) == chosen, args


@pytest.mark.parametrize(
    ("ago", "seconds"),
    [("90 min", 5400), ("2h", 7200), ("7190s", 7190), ("1.5 hours ago", 5400), ("1 d", 86400)],
)
def test_since_may_be_said_from_now(store: Path, ago: str, seconds: int) -> None:
    since = (NOW - seconds) * 1e9
    chosen = [lsn for lsn, item in records(store, "finished").items() if item["time_ns"] >= since]
    assert lsns(store, "finished", "--since", ago) == chosen


def test_a_selection_without_records_says_so(store: Path) -> None:
    for words in (("--kind", "outcom"), ("--lsn", "1000.."), ("--json", "--since", "1 s")):
        done = call("logdump", "dump", "finished", *words, cwd=store)
        assert done.code == 0 and "LSN 10" not in done.out, done
        assert "logdump: no record to show: the log ends at LSN" in done.err


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("--lsn", "x"), "--lsn x: a number, or 3..7"),
        (("--lsn", ".."), "--lsn ..: a number"),
        (("--step", "7..3"), "nothing is from 7 to 3"),
        (("--lsn", "3...7"), "a number, or 3..7"),
        (("--since", "last week"), "no time: write 2026-05-04T09:00:00Z"),
        (("--until", "9" * 40), "no time"),
        (("--since", "999999999 w"), "nothing"),
        (("--grep", "("), "no regular expression"),
        (("--tail", "0"), "--tail"),
        (("--tail", "-3"), "--tail"),
        (("--full", "--json"), "give one of them"),
        (("--headers",), "goes with --raw"),
        (("--at", "x"), "a segment and an offset, as in 2:0x1f40"),
        (("--at", "9:64"), "there is no segment 9"),
        (("--at", f"1:{10**20}"), "a segment and an offset, as in 2:0x1f40"),
        (("--bytes", "0"), "--bytes"),
    ],
)
def test_options_that_make_no_sense_are_said_in_a_line(
    store: Path, args: tuple[str, ...], says: str
) -> None:
    done = call("logdump", "dump", "finished", *args, cwd=store)
    if says == "nothing":
        assert done.code == 0  # long ago, and no harm
        return
    assert done.code == 64 and done.out == "" and says in done.err, done
    assert done.err.splitlines()[-1].startswith("logdump: ")


def test_errors_are_what_failed_what_is_in_doubt_and_damage(store: Path) -> None:
    shown = records(store, "crashed_in_doubt", "--errors")
    assert {item["kind"] for item in shown.values()} == {"attempt_failed", "call"}
    (doubt,) = (item for item in shown.values() if item["kind"] == "call")
    assert doubt["tool"] == "send_mail"
    assert lsns(store, "finished", "--errors") == [22]  # all its calls have outcomes
    failed = records(store, "failed", "--errors")
    assert {"failure", "run_failed"} <= {item["kind"] for item in failed.values()}
    done = call("logdump", "dump", "damaged_frame", "--errors", cwd=store)
    assert "DAMAGE  segment" in done.out and done.code == 2


@pytest.mark.parametrize("args", [("--kind", "nothing"), ("--grep", "nothing"), ("--step", "99")])
def test_damage_is_shown_whatever_is_asked_for(store: Path, args: tuple[str, ...]) -> None:
    done = call("logdump", "dump", "damaged_frame", *args, cwd=store)
    assert "DAMAGE  segment" in done.out and done.code == 2


def test_damage_is_shown_where_it_is_in_the_range_alone(store: Path) -> None:
    lines = call("logdump", "dump", "damaged_frame", "--json", cwd=store).out.splitlines()
    items = [json.loads(line) for line in lines]
    (damage,) = (item for item in items if item["type"] == "damage")
    first, last = damage["first_lsn"], damage["last_lsn"]
    for asked in (f"{first}", f"{last}..{last}", f"..{first}", f"{first - 1}..{last + 1}"):
        done = call("logdump", "dump", "damaged_frame", "--lsn", asked, cwd=store)
        assert "DAMAGE" in done.out and done.code == 2, asked
    for asked in (f"..{first - 1}", f"{last + 1}.."):
        done = call("logdump", "dump", "damaged_frame", "--lsn", asked, cwd=store)
        assert "DAMAGE" not in done.out and done.code == 0, asked


def test_of_an_encrypted_log_it_is_said_that_nothing_was_looked_into(tmp_path: Path) -> None:
    with EventLog.open(tmp_path / "log", encryption=Encryption(bytes(32), "k1")) as log:
        log.append_batch([("a", 1), ("b", 2)])
    assert lsns(tmp_path, "log", "--lsn", "2") == [2]
    assert lsns(tmp_path, "log", "--tail", "1") == [2]
    done = call("logdump", "dump", "log", "--kind", "a", cwd=tmp_path)
    assert done.err == "logdump: 2 records not looked into: encrypted, and there is no key\n"
    key = {"EVENTLOG_KEY": "00" * 32}
    done = call("logdump", "dump", "log", "--kind", "a", "--json", cwd=tmp_path, env=key)
    assert [json.loads(line)["lsn"] for line in done.out.splitlines()] == [1]


# -- the last ones


def test_tail_is_the_last_of_those_that_are_wanted(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("logdump.commands.dump._STRETCH", 7)
    write_run(tmp_path / "run", 40, segment_size=1500)
    assert len(list((tmp_path / "run").glob("*.seg"))) > 10
    whole = records(tmp_path, "run")
    for most in (1, 2, 5, 30, 1000):
        assert lsns(tmp_path, "run", "--tail", str(most)) == list(whole)[-most:]
        sent = [n for n, item in whole.items() if item.get("tool") == "send_mail"][-most:]
        assert lsns(tmp_path, "run", "--tool", "send_mail", "--tail", str(most)) == sent
        early = [n for n, item in whole.items() if 3 <= item["step"] <= 4][-most:]
        assert lsns(tmp_path, "run", "--step", "3..4", "--tail", str(most)) == early
    assert lsns(tmp_path, "run", "--lsn", "10..90", "--tail", "3") == [88, 89, 90]
    assert lsns(tmp_path, "run", "--kind", "nothing", "--tail", "3") == []
    assert records(tmp_path, "run", "--tail", "9") == {n: whole[n] for n in list(whole)[-9:]}


def test_tail_shows_damage_among_the_last(store: Path) -> None:
    done = call("logdump", "dump", "damaged_frame", "--tail", "40", cwd=store)
    assert "DAMAGE" in done.out and done.code == 2


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 20 MB in segments of 1 MiB."""
    path = tmp_path_factory.mktemp("large") / "run"
    with Written(path, segment_size=1 << 20) as run:
        run.put(RunStarted("run", None, "u"))
        for step in range(1, 1001):
            run.put(StepStarted(step))
            run.call(step, "search", "y" * 10_000)
            run.call(step, "fetch", {"z": ["z" * 1000] * 10})
    return path.parent


@pytest.mark.parametrize(
    "args",
    [
        ("--tail", "10"),
        ("--lsn", "4000..4010"),
        ("--lsn", "4990.."),
        ("--tail", "3", "--kind", "step"),
    ],
)
def test_a_few_records_cost_little_however_long_the_log(
    large: Path, args: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    pread = os.pread

    def counting(file: int, size: int, offset: int) -> bytes:
        data = pread(file, size, offset)
        read.append(len(data))
        return data

    monkeypatch.setattr(os, "pread", counting)
    assert lsns(large, "run", *args)
    assert sum(read) < 12 << 20, sum(read)  # and 5 MB at most for most


def test_memory_does_not_grow_with_the_log(large: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recovery.values.backrefs.RECENT_SIZE_MAX", 1 << 20)

    class Nothing:
        """An output that keeps nothing."""

        written = 0

        def write(self, text: str) -> None:
            self.written += len(text)

        def writelines(self, lines: Iterator[str]) -> None:
            for line in lines:
                self.write(line)

        def flush(self) -> None:
            pass

        def isatty(self) -> bool:
            return False

    from logdump import main

    nothing = Nothing()
    monkeypatch.setattr(sys, "stdout", nothing)
    tracemalloc.start()
    try:
        assert main(["dump", str(large / "run"), "--json"]) == 0
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert nothing.written and peak < 8 << 20, peak  # a segment, some pieces, outcomes of late


def test_what_a_range_shows_is_what_the_whole_shows(large: Path) -> None:
    with EventLog.read(large / "run") as reader:
        whole = [item for item in dump(reader) if int(str(item["lsn"])) >= 3990]
        assert list(dump(reader, 3990)) == whole  # over several footers
        assert list(dump(reader, 3990, 4010)) == whole[:21]


# -- how it is shown


def test_whole_values_and_tracebacks_are_shown_over_several_lines(store: Path) -> None:
    out = call("logdump", "dump", "failed", "--full", "--kind", "failure", cwd=store).out
    assert "    traceback:\n      | Traceback (most recent call last):\n      |   File" in out


def test_a_tool_is_hidden_with_all_that_went_into_it_and_came_out(store: Path) -> None:
    shown = call("logdump", "dump", "failed", "--full", "--redact", "charge", cwd=store).out
    assert "was declined" in call("logdump", "dump", "failed", "--full", cwd=store).out
    assert "was declined" not in re.sub(r"(?s)messages .*?\n {4}new:.*?\n {5,6}\d", "", shown)
    assert "args: [redacted]" in shown and "traceback: [redacted]" in shown
    for kind in ("call", "failure"):
        options = ("--kind", kind, "--tool", "charge", "--redact", "charge")
        wide = {"COLUMNS": "200"}
        lines = call("logdump", "dump", "failed", *options, cwd=store, env=wide).out.splitlines()
        assert lines[1:] and all("[redacted]" in line for line in lines[1:])


def test_bytes_are_not_shown_where_something_is_to_be_hidden(store: Path) -> None:
    for options in (("--lsn", "8", "--raw"), ("--at", "1:1328")):
        done = call("logdump", "dump", "finished", *options, "--redact", "x", cwd=store)
        assert "bytes of payload: [redacted]" in done.out and len(shown_bytes(done.out)) < 56
        done = call("logdump", "dump", "finished", *options, cwd=store)
        assert b"flight" in shown_bytes(done.out)


@pytest.mark.parametrize("width", [20, 40, 60, 80, 100, 120, 200])
def test_lines_are_as_wide_as_the_terminal(store: Path, width: int) -> None:
    env = {"COLUMNS": str(width)}
    lines = call("logdump", "dump", "finished", cwd=store, env=env).out.splitlines()
    assert all(columns(line) <= width for line in lines)
    heads = lines[0].split()
    assert "VALUE" in heads or width < 40
    if width >= 80:
        assert {"LSN", "STEP", "KIND", "TOOL"} <= set(heads)
        # The values begin in one column, also behind East Asian characters.
        assert all(line[lines[0].index("VALUE") - 1] == " " for line in lines)


def test_colours_are_for_terminals_or_whoever_asks(store: Path) -> None:
    plain = call("logdump", "dump", "finished", cwd=store).out
    assert SGR.findall(plain) == []
    coloured = call("logdump", "dump", "finished", cwd=store, env={"FORCE_COLOR": "1"}).out
    assert SGR.findall(coloured) and SGR.sub("", coloured) == plain


# -- bytes


def frame_offset(store: Path, run: str, lsn: int) -> tuple[int, int]:
    item = records(store, run)[lsn]
    return item["segment"], item["offset"]


def test_raw_shows_the_bytes_and_fields_of_frames(store: Path) -> None:
    number, offset = frame_offset(store, "finished", 8)
    path = store / "finished" / f"{number:08d}.seg"
    out = call(
        "logdump", "dump", "finished", "--raw", "--lsn", "8", "--bytes", "100000", cwd=store
    ).out
    data = path.read_bytes()
    size, kind, lsn, durable, snapshot, count, crc = struct.unpack_from(
        "<IIQQQII", data, offset + 8
    )
    assert f"segment {number}, offset {offset}: frame of LSN {lsn}, records" in out
    assert f"payload of {size} bytes, kind {kind:#x}, {count} record" in out
    assert f"durable mark {durable}, last snapshot {snapshot}" in out
    assert f"payload CRC {crc:08x} ok" in out and "header CRC" in out and "BAD" not in out
    assert shown_bytes(out) == data[offset : offset + -(-(48 + size) // 8) * 8]


def shown_bytes(out: str) -> bytes:
    lines = re.findall(r"^  [0-9a-f]{8}  ((?:[0-9a-f]{2} ?){1,16})", out, re.M)
    return bytes.fromhex("".join(lines))


def test_a_batch_is_one_frame(tmp_path: Path) -> None:
    with EventLog.open(tmp_path / "log") as log:
        log.append_batch([("a", 1), ("b", 2), ("c", 3)])
    out = call("logdump", "dump", "log", "--raw", cwd=tmp_path).out
    assert out.count("frame of LSN 1-3, records") == 1
    assert [line.split()[0] for line in out.splitlines() if " UTC" not in line][1] == "1"


@pytest.mark.parametrize(
    ("at", "says"),
    [
        (0, r"marker [0-9a-f]{8} BAD \(the segment's salt is [0-9a-f]{8}\)"),
        (4, r"header CRC [0-9a-f]{8} BAD \(of these: [0-9a-f]{8}\)"),
        (11, r"payload of [\d,]+ bytes BAD \(more than there can be\)"),
        (24, r"header CRC [0-9a-f]{8} BAD"),
        (60, r"payload CRC [0-9a-f]{8} BAD \(of these: [0-9a-f]{8}\)"),
    ],
)
def test_raw_says_what_is_wrong_with_a_damaged_frame(
    store: Path, tmp_path: Path, at: int, says: str
) -> None:
    shutil.copytree(store / "finished", tmp_path / "run")
    number, offset = frame_offset(store, "finished", 30)
    path = tmp_path / "run" / f"{number:08d}.seg"
    data = bytearray(path.read_bytes())
    data[offset + at] ^= 0x80
    path.write_bytes(data)
    out = call("logdump", "dump", "run", "--raw", "--lsn", "30", cwd=tmp_path).out
    assert "DAMAGE" in out and re.search(says, out), out
    assert bytes(data[offset : offset + 64]) in shown_bytes(out)
    assert re.search(
        says, call("logdump", "dump", "run", "--at", f"{number}:{offset}", cwd=tmp_path).out
    )


def test_padding_and_places_that_are_no_frames_are_shown(store: Path, tmp_path: Path) -> None:
    shutil.copytree(store / "finished", tmp_path / "run")
    number, offset = frame_offset(store, "finished", 8)
    path = tmp_path / "run" / f"{number:08d}.seg"
    data = bytearray(path.read_bytes())
    data[frame_offset(store, "finished", 9)[1] - 1] = 7
    path.write_bytes(data)
    out = call("logdump", "dump", "run", "--raw", "--lsn", "8", cwd=tmp_path).out
    assert "padding of 4 bytes: NOT ZERO" in out
    out = call("logdump", "dump", "run", "--at", f"{number}:{offset + 8}", cwd=tmp_path).out
    assert f"next sound frame header: LSN 9, at {number}:" in out
    end = len(data) - 5
    assert (
        "5 bytes, no frame" in call("logdump", "dump", "run", "--at", f"1:{end}", cwd=tmp_path).out
    )
    assert "segment header" in call("logdump", "dump", "run", "--at", "1:0", cwd=tmp_path).out


def test_headers_and_footers_of_segments_are_shown(store: Path) -> None:
    out = call("logdump", "dump", "finished", "--raw", "--headers", cwd=store).out
    with EventLog.read(store / "finished") as reader:
        numbers = reader.listing.numbers()
        assert len(numbers) > 1
        salts = [header.salt.hex() for n in numbers if (header := reader.listing.header(n))]
    assert re.findall(r"(\d{8})\.seg: segment header", out) == [f"{n:08d}" for n in numbers]
    assert re.findall(r"number \d+, salt ([0-9a-f]{8})", out) == salts
    assert out.count("trailer: footer at offset") == len(numbers) and "BAD" not in out


# -- as it grows


class Following:
    """A process that follows a log. A context manager."""

    def __init__(self, path: Path, *args: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", "-m", "logdump", "dump", "-f", str(path), *args],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=ENVIRONMENT,
        )
        self._seen = b""

    def __enter__(self) -> Following:
        return self

    def __exit__(self, *exc: object) -> None:
        self.process.kill()
        self.process.communicate()

    def line(self, stream: str = "stdout") -> str:
        """The next line."""
        file = getattr(self.process, stream)
        while b"\n" not in self._seen:
            assert select.select([file], [], [], PATIENCE_S)[0], "nothing comes"
            part = os.read(file.fileno(), 1 << 16)
            assert part, self.process.stderr.read() if self.process.stderr else ""
            self._seen += part
        line, _, self._seen = self._seen.partition(b"\n")
        return line.decode()

    def record(self) -> tuple[int, int, Any]:
        item = json.loads(self.line())
        return item["segment"], item["lsn"], item["body"]


def test_follow_goes_on_over_segments_writers_takeovers_and_a_removal(tmp_path: Path) -> None:
    path = tmp_path / "run"
    with Following(path, "--json") as following:
        assert "is not there yet; waiting for it" in following.line("stderr")
        lsn = 0
        for life in range(2):
            with EventLog.open(path, segment_size=300) as log:
                for i in range(4):  # a segment each
                    lsn = log.append("k", [life, i, "x" * 100])
                    assert following.record() == (lsn, lsn, [life, i, "x" * 100])
        stuck = EventLog.open(path)
        stuck.append("k", "stuck")
        assert following.record()[1:] == (lsn + 1, "stuck")
        with EventLog.open(path, takeover=True) as log:
            log.append("k", "goes on")
            assert following.record()[1:] == (lsn + 2, "goes on")
            log.commit()
            log.truncate_before(lsn)
            log.append("k", "truncated")
            assert following.record()[1:] == (lsn + 3, "truncated")
        with pytest.raises(Exception, match="taken over"):
            stuck.close()
        shutil.rmtree(path)
        assert "was removed; waiting" in following.line("stderr")
        with EventLog.open(path) as log:
            log.append("k", "anew")
            assert following.record()[1:] == (1, "anew")


def test_follow_says_what_a_run_does_as_it_does_it(tmp_path: Path) -> None:
    with Written(tmp_path / "run", durability="process") as run:
        run.put(RunStarted("run", "a task", "u"))
        for step in (1, 2):
            run.put(StepStarted(step))
            call_lsn = run.call(step, "charge")
        with Following(tmp_path / "run", "--tail", "1") as following:
            assert following.line().split()[:3] == ["LSN", "TIME", "(UTC)"]
            assert f"charge#{call_lsn}" in following.line()
            run.put(CallReturned(call_lsn, "paid"))
            assert re.search(rf" 2  outcome +charge#{call_lsn} .* \"paid\"", following.line())
            run.put(StepStarted(3))
            assert following.line().endswith("step 3 begins")


def test_follow_tells_damage(tmp_path: Path, store: Path) -> None:
    with Following(store / "damaged_frame", "--json", "--kind", "nothing") as following:
        damage = json.loads(following.line())
        assert damage["type"] == "damage" and damage["first_lsn"] <= damage["last_lsn"]


def test_follow_notices_a_closed_pipe_while_nothing_comes(store: Path) -> None:
    with Following(store / "finished", "--tail", "1") as following:
        following.line()
        following.line()
        assert following.process.stdout is not None
        following.process.stdout.close()
        assert following.process.wait(PATIENCE_S) == 141
        assert following.process.stderr is not None and following.process.stderr.read() == b""


def test_follow_ends_with_ctrl_c(store: Path) -> None:
    with Following(store / "finished", "--tail", "1") as following:
        following.line()
        following.line()
        following.process.send_signal(signal.SIGINT)
        assert following.process.wait(PATIENCE_S) == 130
        assert following.process.stderr is not None and following.process.stderr.read() == b""


def test_follow_to_an_lsn_ends_there(store: Path) -> None:
    done = call("logdump", "dump", "finished", "-f", "--lsn", "5..7", "--json", cwd=store)
    assert [json.loads(line)["lsn"] for line in done.out.splitlines()] == [5, 6, 7]


def test_to_follow_an_encrypted_log_takes_its_key(store: Path) -> None:
    command = "dump", "encrypted", "-f", "--lsn", "5..7", "--json"
    done = call("logdump", *command, cwd=store)
    assert done.code == 77 and "--key-file" in done.err and done.out == ""
    done = call("logdump", *command, cwd=store, env={"EVENTLOG_KEY": f"{KEY_ID} {KEY.hex()}"})
    assert [json.loads(line)["lsn"] for line in done.out.splitlines()] == [5, 6, 7]


def test_what_is_no_log_is_not_waited_for(store: Path) -> None:
    done = call("logdump", "dump", "-f", ".", cwd=store)
    assert done.code == 32 and "is not a log" in done.err


def test_what_the_documentation_shows_is_what_comes(store: Path) -> None:
    page = (ROOT / "docs" / "logdump.md").read_text("utf-8")
    section = page.split("\n## dump\n")[1].split("\n## ")[0]
    blocks = re.findall(
        r"^```\n(.*?)^```$", re.sub(r"(?ms)^```sh$.*?^```$", "", section), re.S | re.M
    )
    shown = call("logdump", "dump", "finished", "--lsn", "21..24", cwd=store)
    assert [shown.out] == blocks


def test_the_harness_reads_what_is_there(store: Path) -> None:
    """The offsets that the tests above rely on are where frames are."""
    with EventLog.read(store / "finished") as reader:
        assert isinstance(reader, LogReader)
        number, offset = frame_offset(store, "finished", 30)
        salt = read_segment(reader._directory, number)[offset : offset + 4]
        header = reader.listing.header(number)
        assert header is not None and salt == header.salt
