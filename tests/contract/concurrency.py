"""Small concurrent agents, killed with SIGKILL in real processes, and what that came to, by shape.

    python -m tests.contract.concurrency [SHAPE...] [--kills 40] [--loop asyncio|uvloop] [--jobs 4]

Half of the kills come at a record (just before it is written, or just behind), the others at random
times; of the lives that follow every third is killed, too. An effect is counted outside; a result
that reached another coroutine is noted there by whoever got it. Ctrl-C shows what is done so far.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import logging
import os
import random
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from eventlog import EventLog
from recovery import CheckpointStore, InDoubtError, RecoverableAgent, Resolution
from recovery.control.resolve import resolve
from recovery.declare.spec import is_async
from recovery.errors import DivergenceError
from tests.contract.shapes import groups, outside, queues, races

__all__ = ["groups", "queues", "races"]  # they fill the list of shapes

RUN = "run"
LIFE_S = 80.0  # no life of these takes longer, unless it hangs
LIVES_MAX = 12
LOOPS = ("asyncio", "uvloop")
SHAPES = {name: one for name, one in outside.SHAPES.items() if sys.version_info >= one.python}


@dataclass(frozen=True, slots=True)
class Kill:
    """When a life is killed: at its record ``at`` (before it is written, or behind), or after so
    many seconds; or not at all."""

    at: int = 0
    behind: bool = False
    after_s: float = 0.0


@dataclass(slots=True)
class End:
    """How a life ended: ``error`` is empty where it returned, and for one that was killed."""

    killed: bool = False
    result: str = ""
    error: str = ""
    records: int = 0
    time_s: float = 0.0
    told: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Tally:
    """What the kills of one shape came to; ``seen`` has a line for each thing that went wrong."""

    shape: str
    loop: str
    kills: int = 0
    wrong: int = 0
    twice: int = 0
    stops: int = 0
    hangs: int = 0
    others: int = 0
    told: bool = False  # at the first execution, that its replay is a matter of luck
    time_s: float = 0.0
    seen: list[str] = field(default_factory=list)

    @property
    def sound(self) -> bool:
        """Whether nothing went wrong that was not told of."""
        false = 0 if self.told else self.stops
        return not (self.wrong or self.twice or false or self.hangs or self.others)


def _runner(loop: str) -> asyncio.Runner:
    if loop == "asyncio":
        return asyncio.Runner()
    import uvloop

    return asyncio.Runner(loop_factory=uvloop.new_event_loop)


class _Told(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def _live(home: Path, agent: Callable[[Any], Any], loop: str, kill: Kill, end: End) -> None:
    """In a process of its own: run the agent, and die on the way if that is planned."""
    outside.Effects.path = home / "effects"
    outside.jitter.seed(os.urandom(8))
    append = EventLog.append

    def counted(log: EventLog, *args: Any, **kwargs: Any) -> Any:
        end.records += 1
        if end.records == kill.at and not kill.behind:
            os.kill(os.getpid(), signal.SIGKILL)
        lsn = append(log, *args, **kwargs)
        if end.records == kill.at:
            os.kill(os.getpid(), signal.SIGKILL)
        return lsn

    EventLog.append = counted  # type: ignore[method-assign,assignment]
    told = _Told()
    logging.getLogger("recovery").addHandler(told)
    logging.getLogger("asyncio").disabled = True  # a stop goes through tasks that nobody awaits,
    threading.excepthook = lambda args: None  # and through threads
    recoverable = RecoverableAgent(agent, CheckpointStore(home / "runs"), checkpoint_every_n=2)
    try:
        if is_async(agent):
            with _runner(loop) as runner:
                found = runner.run(recoverable.run_with_recovery("task", RUN))
        else:
            found = recoverable.run_with_recovery_sync("task", RUN)
        end.result = repr(found["result"])
    except InDoubtError as parked:
        calls = [[one.lsn, one.idempotency_key, one.tool, str(one.args[0])] for one in parked.calls]
        end.error = f"parked {json.dumps(calls)}"
    except BaseException as exc:
        end.error = f"{type(exc).__name__}: {exc}"
        if not isinstance(exc, DivergenceError):
            end.error += "\n" + traceback.format_exc()
    end.told = told.lines


def live(home: Path, agent: Callable[[Any], Any], loop: str, kill: Kill) -> End:
    """One life of a run, in a process that is forked from this one."""
    reads, writes = os.pipe()
    began = time.monotonic()
    child = os.fork()
    if not child:
        try:
            os.close(reads)
            end = End()
            _live(home, agent, loop, kill, end)
            said = json.dumps([end.result, end.error, end.records, end.told])
            os.write(writes, said.encode()[: 1 << 16])
        finally:
            os._exit(0)
    os.close(writes)
    limit = min(kill.after_s, LIFE_S) or LIFE_S
    status = _waited(child, began + limit)
    killed = status is None
    if status is None:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    with os.fdopen(reads) as pipe:
        said = pipe.read()
    taken = time.monotonic() - began
    if said:  # it had ended before it could be killed
        result, error, records, told = json.loads(said)
        return End(False, result, error, records, taken, told)
    if killed and not kill.after_s:
        return End(error=f"HANGS for {LIFE_S:g} s", time_s=taken)
    return End(killed=True, time_s=taken)


def _waited(child: int, until: float) -> int | None:
    while time.monotonic() < until:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return status
        time.sleep(0.001)
    return None


def _settle(home: Path, parked: str) -> None:
    """What a person does who finds out what happened."""
    done = {key for _, _, key in outside.Effects.noted()}
    words = {"pay": "paid", "post": "posted", "send": "sent"}
    for lsn, key, tool, what in json.loads(parked.removeprefix("parked ")):
        how = Resolution.outcome(f"{words[tool]} {what}") if key in done else Resolution.retry()
        resolve(CheckpointStore(home / "runs"), RUN, lsn, how)


def whole_life(
    home: Path, name: str, loop: str, kills: Iterator[Kill]
) -> tuple[list[End], list[tuple[str, str, str]]]:
    """A run from its beginning to its end, over kills; its lives, and its effects."""
    outside.Effects.path = home / "effects"
    ends: list[End] = []
    for _ in range(LIVES_MAX):
        ends.append(live(home, SHAPES[name].agent, loop, next(kills, Kill())))
        if ends[-1].error.startswith("parked"):
            _settle(home, ends[-1].error)
        elif not ends[-1].killed:
            break
    return ends, outside.Effects.noted()


def judge(tally: Tally, wanted: str | None, ends: list[End], effects: list[Any]) -> None:
    """Add to the tally what a run came to. ``wanted``: its result, where there is only one."""
    end = ends[-1]
    tally.kills += sum(one.killed for one in ends)
    tally.wrong += sum(kind == "WRONG" for kind, _, _ in effects)
    done = Counter((kind, what) for kind, what, _ in effects if kind not in ("fetch", "WRONG"))
    twice = [f"{kind} {what}" for (kind, what), count in done.items() if count > 1]
    tally.twice += len(twice)
    tally.seen += [f"{what} twice" for what in twice]
    if end.error.startswith("DivergenceError"):
        tally.stops += 1
    elif end.error.startswith("HANGS"):
        tally.hangs += 1
    elif end.error or (wanted is not None and end.result != wanted):
        tally.others += 1
        tally.seen.append(end.error or f"{end.result} in place of {wanted}")
        return
    if end.error:
        tally.seen.append(end.error)


def plans(rng: random.Random, reference: End, count: int) -> Iterator[Iterator[Kill]]:
    """When the lives of each of ``count`` runs are killed."""
    for number in range(count):
        again = itertools.chain(_more(rng, reference), itertools.repeat(Kill()))
        if number % 2:
            first = Kill(after_s=rng.uniform(0.0, reference.time_s))
        else:
            at = 1 + round((number / count) * (reference.records - 1))
            first = Kill(at=at, behind=bool(number % 4))
        yield itertools.chain([first], again)


def _more(rng: random.Random, reference: End) -> list[Kill]:
    one = Kill(at=rng.randint(1, reference.records), behind=rng.random() < 0.5)
    return [one] if rng.random() < 1 / 3 else []


def sweep(name: str, loop: str, kills: int, seed: int) -> Tally:
    """Kill a shape again and again; what it came to."""
    began = time.monotonic()
    tally = Tally(name, loop)
    with tempfile.TemporaryDirectory(prefix="shape-") as folder:
        homes = (Path(folder) / str(number) for number in itertools.count())
        ends, effects = whole_life(next(homes), name, loop, iter([]))
        tally.told = any("may do things in another order" in line for line in ends[0].told)
        wanted = None if SHAPES[name].racy else ends[-1].result
        judge(tally, wanted, ends, effects)
        for plan in plans(random.Random(f"{seed} {name}"), ends[0], kills):
            judge(tally, wanted, *whole_life(next(homes), name, loop, plan))
    tally.time_s = time.monotonic() - began
    return tally


def table(tallies: list[Tally]) -> str:
    """What the kills came to, by shape."""
    heads = (
        "shape",
        "loop",
        "kills",
        "wrong coroutine",
        "twice",
        "false stops",
        "hangs",
        "other",
        "told",
    )
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for one in tallies:
        cells = (
            one.shape.replace("_", " "),
            one.loop,
            one.kills,
            one.wrong,
            one.twice,
            one.stops,
            one.hangs,
            one.others,
            "yes" if one.told else "",
        )
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    bad = [one for one in tallies if not one.sound]
    kills = sum(one.kills for one in tallies)
    lines.append(f"\n{len(tallies)} rows, {kills:,} kills, {len(bad)} of the rows with a fault")
    return "\n".join(lines)


def main() -> int:
    """Sweep the shapes, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shapes", nargs="*", metavar="SHAPE", help=", ".join(SHAPES))
    parser.add_argument("--kills", type=int, default=40)
    parser.add_argument("--loop", choices=LOOPS, action="append")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(32))
    options = parser.parse_args()
    print(f"seed {options.seed}")
    work = [
        (name, loop)
        for name in options.shapes or SHAPES
        for loop in options.loop or LOOPS
        if loop == "asyncio" or is_async(SHAPES[name].agent)
    ]
    tallies = []
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("fork")) as pool:
        begun = [pool.submit(sweep, *one, options.kills, options.seed) for one in work]
        try:
            for tally in (one.result() for one in begun):
                tallies.append(tally)
                print(f"{tally.shape}, {tally.loop}: {tally.kills} kills", flush=True)
                for seen in dict.fromkeys(tally.seen):
                    print(f"{tally.shape}, {tally.loop}: {seen}", flush=True)
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
    print(table(tallies))
    return 0 if len(tallies) == len(work) and all(one.sound for one in tallies) else 1


if __name__ == "__main__":
    sys.exit(main())
