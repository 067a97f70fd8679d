"""No mangled run makes a command fail, hang, grow, or show anything raw. See fuzz.py."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from msgpack import ExtType

from eventlog.format.frame import encode_frame
from eventlog.format.record import Packed, encode_payload
from recovery.values.pack import EXT_PARTS
from tests.cli import fuzz
from tests.cli.fuzz import check, make, reading, run_case
from tests.cli.harness import HERE, RUNS, Done, call, environment
from tests.conftest import Figures

ROOT = HERE.parents[1]
# Behind what is installed: the packages are not to come from the checkout.
PROGRAM = (
    f"import sys; sys.path.append({str(ROOT)!r}); from tests.cli.fuzz import main; "
    "sys.exit(main(*sys.argv[1:]))"
)


def fuzzed(seed: str, count: int, folder: Path) -> None:
    path = ":".join(str(Path(part).absolute()) for part in sys.path if part)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, seed, str(count), str(folder)],
        capture_output=True,
        text=True,
        check=False,
        env=environment(PYTHONPATH=path),
    )
    under_way = (folder / "case").read_text() if (folder / "case").exists() else "none"
    assert done.returncode == 0, f"{done.stdout}{done.stderr}\nthe last case: {under_way}"


def test_mangled_runs(rng: random.Random, tmp_path: Path) -> None:
    fuzzed(str(rng.getrandbits(32)), 200, tmp_path)


@pytest.mark.crash
@pytest.mark.parametrize("part", range(10))
def test_ten_thousand_mangled_runs(
    part: int, rng: random.Random, tmp_path: Path, figures: Figures
) -> None:
    fuzzed(str(rng.getrandbits(32)), 1000, tmp_path)
    figures.add("mangled runs", runs=1000, commands=2000)


# -- found by it


FORGED: dict[
    str, tuple[str, int, list[tuple[str, Any]]]
] = {  # the segment and LSN of a record, and what is put in its place
    "a call whose intent is a map with a key that is none of ours": (
        "00000002.seg",
        49,
        [("call", Packed(b"\x81\x07\xc0"))],
    ),
    "a message that says it is made of parts, and holds no value": (
        "00000001.seg",
        3,
        [("messages", {"start": 0, "stop": 0, "new": [ExtType(EXT_PARTS, b"\xc0\xc0")]})],
    ),
}


@pytest.mark.parametrize("what", FORGED)
@pytest.mark.parametrize("command", sorted({command for command, _ in reading()}))
def test_a_record_that_makes_no_sense_in_a_sound_frame(
    command: str, what: str, tmp_path: Path
) -> None:
    segment_name, lsn, records = FORGED[what]
    run = tmp_path / "run"
    shutil.copytree(RUNS / "finished", run)
    segment = run / segment_name
    found = fuzz.frames(segment.read_bytes())
    assert found is not None
    header, salt, frames = found
    assert lsn in [frame.lsn for frame, _ in frames]
    for frame, payload in frames:
        marks = frame.lsn, frame.durable, frame.snapshot
        said = encode_payload(1, records) if frame.lsn == lsn else payload
        header += encode_frame(salt, frame.kind, frame.count, said, marks)
    segment.write_bytes(header)
    for words in (words for one, words in reading() if one == command):
        done = call(*command.split(), *words.replace("{run}", "run").split(), cwd=tmp_path)
        check(done)


# -- the fuzzer itself


def test_all_reading_commands_are_fuzzed() -> None:
    names = Counter(command for command, _ in reading())
    assert {"logdump dump", "logdump verify", "logdump status", "logdump timeline"} <= set(names)
    assert "logdump import" not in names


def test_runs_are_mangled_in_every_way(tmp_path: Path) -> None:
    """Most differ from what they were, and are found to by verify: with all bits there are."""
    bits = Counter[int]()
    for number in range(60):
        run = make(random.Random(f"ways {number}"), tmp_path / "runs")
        code = call("logdump", "verify", run, cwd=tmp_path / "runs").code
        bits.update(bit for bit in (1, 2, 4, 8, 16, 32) if code & bit)
    assert set(bits) >= {1, 2, 4, 8, 32} and sum(bits.values()) > 40, bits


def test_forged_records_hold_their_checksums(tmp_path: Path) -> None:
    forged = 0
    for number in range(30):
        content = {
            path.name: path.read_bytes() for path in (RUNS / "finished").iterdir() if path.is_file()
        }
        sound = dict(content)
        fuzz.forge(random.Random(f"forge {number}"), content)
        for name, data in content.items():
            (tmp_path / "run").mkdir(exist_ok=True)
            (tmp_path / "run" / name).write_bytes(data)
        done = call("logdump", "verify", "run", cwd=tmp_path)
        forged += content != sound and "fails its CRC" not in done.out
    assert forged > 20


@pytest.mark.parametrize(
    "done",
    [
        Done(("logdump", "dump"), 1 << 7),
        Done(("recovery", "show"), 63),
        Done(("logdump", "dump"), 0, "\x1b[2J"),
        Done(("logdump", "dump"), 0, "", "Traceback"),
        Done(("logdump", "dump"), 0, "x" * (5 << 20)),
        Done(("logdump", "dump", "--json"), 0, "{"),
    ],
)
def test_what_no_command_may_do_is_noticed(done: Done) -> None:
    with pytest.raises((AssertionError, ValueError)):
        check(done)


def test_an_error_of_a_command_is_reported_with_its_case(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: object, **options: object) -> Done:
        raise KeyError("a bug")

    monkeypatch.setattr(fuzz, "call", broken)
    (wrong,) = run_case("7 1", [("logdump dump", "{run}")] * 2, tmp_path)[:1]
    assert wrong.startswith("case 7 1: logdump dump ") and "KeyError: 'a bug'" in wrong


def test_a_hang_and_much_memory_end_the_process(tmp_path: Path) -> None:
    for bug, sign in (("while True: pass", ""), ("x = bytes(3 << 30)", "MemoryError")):
        program = (
            f"import sys; sys.path.append({str(ROOT)!r}); import tests.cli.fuzz as fuzz\n"
            "fuzz.CPU_S_EACH = 1\n"
            f"def call(*args, **options):\n    {bug}\n"
            f"fuzz.call = call\nsys.exit(fuzz.main('1', '1', {str(tmp_path)!r}))"
        )
        path = ":".join(str(Path(part).absolute()) for part in sys.path if part)
        done = subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            check=False,
            env=environment(PYTHONPATH=path),
        )
        assert done.returncode != 0 and sign in done.stdout, done
