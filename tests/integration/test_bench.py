"""Each benchmark, with as few steps as it can do. No figure is judged, for no machine is quiet."""

from __future__ import annotations

import json
import math
import shutil
import sys
import threading
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from xml.etree import ElementTree

import pytest

pytest.importorskip("matplotlib", reason="benchmarks draw with the extra [bench]")
pytest.importorskip("tabulate", reason="as above")

sys.path.append(str(Path(__file__).parents[2] / "tools"))  # behind what is installed
from bench import __main__ as bench
from bench import _peers, _worker, checkpoint, graphs, report, resume, threads
from bench._result import Result, found
from bench.subjects.paced import Paced, Watch

from eventlog import EventLog
from recovery.journal.events import CallReturned, RunFinished

# Of those that take seconds, one is with the quick tests; `make crash` has the others.
SLOW = {"append", "checkpoint", "graphs", "import", "memory", "resume", "scan", "step"}
SLOW |= {"postgres", "scaling", "threads", "toolcalls", "unsynced"}
NAMES = [
    pytest.param(name, marks=[pytest.mark.crash] if name in SLOW else [])
    for name in bench.BENCHMARKS
]


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No other packages, for which the network would be needed; and nothing is mounted."""

    def refuse() -> str:
        raise AssertionError("a benchmark asked for other packages")

    monkeypatch.setattr(_peers, "python", refuse)
    monkeypatch.setattr(bench, "journalled", lambda directory: nullcontext(None))
    # What takes so long whatever the scale is.
    for module in bench.BENCHMARKS.values():
        if isinstance(getattr(module, "ROUNDS", None), int):
            monkeypatch.setattr(module, "ROUNDS", 3)
    monkeypatch.setattr(resume, "STEPS", resume.STEPS[:2])
    monkeypatch.setattr(graphs, "SIZES", graphs.SIZES[:2])
    monkeypatch.setattr(graphs, "RESUME_ROUNDS", 3)
    monkeypatch.setattr(threads, "SIZES", threads.SIZES[:2])
    small = [
        (name, min(size, 10_000), min(messages, 100), says, 1)
        for name, size, messages, says, _ in checkpoint.CASES
    ]
    monkeypatch.setattr(checkpoint, "CASES", small)


def figures_of(name: str, out: Path, directory: Path) -> list[Result]:
    args = ["--no-peers", "--scale", "0.001", "--dir", str(directory), "--out", str(out)]
    assert bench.main([name, *args]) == 0
    return [Result(**one) for one in json.loads((out / f"{name}.json").read_text())["results"]]


@pytest.mark.parametrize("name", NAMES)
def test_a_benchmark_gives_figures_a_picture_and_a_section(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    module, out, work = bench.BENCHMARKS[name], tmp_path / "out", tmp_path / "work"
    work.mkdir()
    results = figures_of(name, out, work)
    assert list(work.iterdir()) == [], "what was measured on is left behind"
    assert any(one.subject.startswith("agent-eventlog") for one in results)
    assert all(math.isfinite(one.median) and one.median > 0 for one in results)
    assert ElementTree.parse(out / f"{name}.svg").getroot().tag.endswith("svg")
    printed = capsys.readouterr().out
    page = report.page(out)
    for one in results:
        assert one.subject in printed and one.subject in page
        assert one.case in printed and one.case in page
    assert f"## {module.TITLE}\n" in page and f"(benchmarks/{name}.svg)" in page
    for aim in json.loads((out / f"{name}.json").read_text())["aims"]:
        assert aim["what"] in page


@pytest.mark.skipif(shutil.which("strace") is None, reason="flushes are counted with strace")
def test_a_side_effect_takes_one_flush(tmp_path: Path) -> None:
    counted = _worker.flushes(
        _worker.Subject("ours", "agents:Plain"), tmp_path, {"size": 2048, "read": False}
    )
    assert counted is not None and round(counted) == 1
    yardstick = _worker.Subject("yardstick", "raw:Durable")
    assert _worker.flushes(yardstick, tmp_path / "yardstick", {"size": 200}) == 1


def test_a_subject_that_fails_says_why(tmp_path: Path) -> None:
    with pytest.raises(_worker.SubjectError, match=r"(?s)broken: .*KeyError: 'size'"):
        _worker.Worker(_worker.Subject("broken", "raw:Durable"), tmp_path, {})


def test_a_loop_that_ends_by_itself_is_an_error() -> None:
    def loop(go: Callable[[], bool]) -> None:
        raise ValueError("no step at all")

    with pytest.raises(ValueError, match="no step at all"):
        Paced(loop).turn(1)
    with pytest.raises(RuntimeError, match="has ended"):
        Paced(lambda go: go()).turn(2)


def test_pauses_between_turns_are_no_part_of_a_step() -> None:
    made: list[int] = []

    def loop(go: Callable[[], bool]) -> None:
        while go():
            made.append(1)

    paced = Paced(loop)
    assert [len(paced.turn(count)) for count in (3, 1, 5)] == [3, 1, 5]
    assert len(made) == 9, "it went on without a turn"
    paced.close()
    assert len(made) == 9


def test_no_run_ends_before_all_runs_at_once_have_made_their_steps(tmp_path: Path) -> None:
    of = _worker.Subject("ours", "agents:TogetherProcess")
    with _worker.Worker(of, tmp_path, {"size": 100}) as worker:
        worker.ask("together", runs=3, steps=2)
    logs = [EventLog.read(tmp_path / "runs" / f"1-{number}") for number in range(3)]
    records = sorted((one.time_ns, one.kind) for log in logs for one in log.records())
    kinds = [kind for _, kind in records if kind in (CallReturned.kind, RunFinished.kind)]
    assert kinds == [CallReturned.kind] * 6 + [RunFinished.kind] * 3


def test_runs_at_once_begin_with_their_steps_together() -> None:
    watch, began, ends = Watch(2), threading.Event(), []

    def one() -> None:
        began.set()
        ends.append(watch.meet())

    thread = threading.Thread(target=one)
    thread.start()
    began.wait()
    assert not ends, "it did not wait for the other one"
    ends.append(watch.meet())
    thread.join()
    ends[0] += [10.0, 11.0, 12.0]
    ends[1] += [10.5, 11.0, 16.5]
    summary = watch.summary()
    del summary["begun"], summary["cpu"]
    assert summary == {
        "seconds": 6.5,
        "steps": 4,
        "p50": 1.0,
        "p99": 5.5,
        "longest": 5.5,
        "fastest_run": 2.0,
        "slowest_run": 6.0,
    }


def test_found_names_what_was_not_measured() -> None:
    with pytest.raises(KeyError, match="them, 2 KiB"):
        found([Result("2 KiB", "us", 1.0)], "2 KiB", "them")


@pytest.mark.slow
def test_graphs_are_of_the_sizes_that_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graphs, "WAITS_MS", (0,))
    monkeypatch.setattr(graphs, "RESUMED", ())
    monkeypatch.setattr(graphs, "flushes", lambda *args: 1.0)
    args = ["graphs", "--quick", "--sizes", "3,7", "--dir", str(tmp_path), "--out", str(tmp_path)]
    assert bench.main(args) == 0
    made = json.loads((tmp_path / "graphs.json").read_text())
    assert {one["case"] for one in made["results"]} == {"3 nodes of 0 ms", "7 nodes of 0 ms"}
    ours = found([Result(**one) for one in made["results"]], "7 nodes of 0 ms", graphs.ALL)
    assert ours.flushes is None and ours.size is not None and ours.size > 2048
    assert made["scale"] == 0.1
