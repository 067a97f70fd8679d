"""Executes due runs of a store: begins submitted ones, resumes those whose process is gone."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Unpack

from eventlog import LogError, LogLockedError
from eventlog.errors import FencedError, UnreachableError
from recovery.agent.checkpoint_store import CheckpointStore
from recovery.agent.recoverable import RecoverableAgent
from recovery.agent.stop_signals import handled
from recovery.agent_code.agent_name import agent_name
from recovery.declare.spec import function_name
from recovery.engine.resuming import RECORDED
from recovery.errors import (
    InDoubtError,
    ParkedError,
    RunCancelledError,
    RunFailedError,
    RunUndoneError,
    StoppedError,
)
from recovery.history.find_run import check_one_store
from recovery.inspect.states import BROKEN
from recovery.inspect.status import status
from recovery.stores.protocol import RunEntry, RunQueue
from recovery.text import SEALED_TEXT, count, quoted, store_option
from recovery.worker.admission import Admission, Limits, NotNowError
from recovery.worker.listing_queue import queue_of
from recovery.worker.settings import WorkerOptions, WorkerSettings

_logger = logging.getLogger("recovery.worker")  # shown by default, unlike what runs log

LOOK_MAX_S = 60.0  # between two looks at the queue, where nothing wakes the worker
LOOK_FULL_S = 5.0  # between two looks at how much is due, without room for more
RETRY_MIN_S, RETRY_MAX_S = 1.0, 300.0  # before a run whose agent raised an error is resumed again
CHOSEN_MAX = 1000  # due runs that one look reads
ENDED = (RunFailedError, RunCancelledError, RunUndoneError)


@dataclass(frozen=True, slots=True)
class WorkerStats:
    """What a worker does, and has done since it began.

    ``running``: the runs that it executes now. ``ended``: how many executions ended in which way,
    by agent and outcome: "finished", "failed" (an end without a result), "parked", "in doubt",
    "stopped". Or "taken over" (by another process), "unreachable" (the store was), "error" (the
    agent raised).
    ``quarantined``: the runs that it leaves to a person, each with the reason. ``looked_s``:
    seconds since it last read the queue. ``due``: the runs that it found there, up to 1,000, those
    that it has no room for among them. ``store_errors``: outages of the store, and looks that
    failed. ``away_s``: for how long the store has not answered; 0.0: it does.
    """

    running: tuple[str, ...] = ()
    ended: Mapping[tuple[str, str], int] = field(default_factory=dict)
    quarantined: Mapping[str, str] = field(default_factory=dict)
    looked_s: float = 0.0
    due: int = 0
    store_errors: int = 0
    away_s: float = 0.0


class Worker:
    """Executes the runs of some agents that are due, until it is stopped.

    It begins submitted runs and resumes runs whose process died, whose wait is over, or that were
    sent what they wait for. Any number of workers, on any number of machines, may share a store:
    only one executes a run. Each run is executed with all guarantees of ``RecoverableAgent``.

    Args:
        agents: The agents by name: a dict of RecoverableAgents or agent functions, a list of them,
            or a single one. A list gives each the name of its function. A worker executes no runs
            of other agents.
        store: The store of the runs: a CheckpointStore, a path or a URL. None (the default): that
            of the RecoverableAgents.
        concurrency: How many runs this worker executes at once (10). Async agents share an event
            loop, plain ones have a thread each.
        per_agent: How many runs of one agent all workers execute at once: a number, or a dict by
            agent. None: no limit.
        per_key: How many runs of one ``limit_key`` all workers execute at once. None: no limit.
        max_crashes: A run is quarantined if it died so often in a row at one place, or its agent
            raised the same error there (3). Workers leave it alone until it has changed.
            ``recovery show`` has the evidence.
        retry_quarantined: Resume such runs once more, when this worker first sees them (False).
            For the first worker of a mended version.
        park_after_s: For agents without ``park_after_s``: a run that has only waited for so many
            seconds parks and frees its place (5).
        grace_s: How long ``stop`` waits for side effects in flight to end (30).
    """

    def __init__(
        self,
        agents: Any,
        store: CheckpointStore | str | os.PathLike[str] | None = None,
        **options: Unpack[WorkerOptions],
    ) -> None:
        self.settings = WorkerSettings(**options)
        self.agents = agents_by_name(agents, store)
        self.store = next(iter(self.agents.values())).store
        for agent in self.agents.values():
            if agent.settings.park_after_s is None:
                pause_s = self.settings.park_after_s
                agent.settings = replace(agent.settings, park_after_s=pause_s)
        self._queue: RunQueue = queue_of(self.store)
        # A run that a program began itself has the name of the agent's function.
        named = {agent_name(agent.agent_fn) or name: name for name, agent in self.agents.items()}
        self._names = named | {name: name for name in self.agents}
        limits = Limits(self.settings.per_agent, self.settings.per_key, self._names)
        self._stopping = threading.Event()
        self._admission = Admission(self._queue, limits, self._stopping.is_set)
        self._running: dict[str, asyncio.Task[None]] = {}
        self._ended: Counter[tuple[str, str]] = Counter()
        self._quarantined: dict[str, tuple[int, str]] = {}
        self._seen: set[str] = set()  # quarantined runs that were tried again
        self._pauses: dict[str, tuple[float, float]] = {}  # until when, and how long
        self._strangers: set[str] = set()  # agents that other workers are for
        self._broken: set[str] = set()  # runs whose log cannot be read
        self._told = self._warned = -LOOK_MAX_S
        self._looked = self._judged = time.monotonic()
        self._due = self._store_errors = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._changed: asyncio.Event | None = None

    @property
    def stats(self) -> WorkerStats:
        """What the worker does now. Any thread may ask."""
        return WorkerStats(
            tuple(self._running),
            dict(self._ended),
            {run_id: why for run_id, (_, why) in list(self._quarantined.items())},
            time.monotonic() - self._looked,
            self._due,
            self._store_errors + getattr(self._queue, "outages", 0),
            getattr(self._queue, "away_s", 0.0),
        )

    def stop(self, why: str = "its worker was stopped") -> None:
        """Stop at once: no run is begun any more, and runs stop at their next safe point. Other
        workers can resume them immediately. ``why``: for the log. Any thread, or a signal handler,
        may call it."""
        self._stopping.set()
        for agent in self.agents.values():
            agent.stop(why)
        self._wake()

    def run_sync(self, stop_on: Iterable[signal.Signals] = (), *, until_idle: bool = False) -> None:
        """``run`` without an event loop. The first of the signals ``stop_on`` stops it, a second
        one has its former effect."""
        with handled(tuple(stop_on), self.stop):
            asyncio.run(self.run(until_idle=until_idle))

    async def run(self, *, until_idle: bool = False) -> None:
        """Execute due runs until ``stop``.

        ``until_idle``: return when no run is being executed or due, except for quarantined ones
        (False): for tests and cron jobs. A store that cannot be read is tried again.
        """
        self._loop, self._changed = asyncio.get_running_loop(), asyncio.Event()
        # Each plain agent waits in a thread, and so does each commit.
        self._loop.set_default_executor(ThreadPoolExecutor(2 * self.settings.concurrency + 8))
        _logger.info(
            "worker %d on %s: agents %s; runs in %s; %s at once",
            os.getpid(),
            socket.gethostname(),
            ", ".join(self.agents),
            self.store.backend.address or "memory",
            count(self.settings.concurrency, "run"),
        )
        over = threading.Event()
        name = "recovery-worker-watch"
        threading.Thread(target=self._watch, args=(over,), name=name, daemon=True).start()
        try:
            while not self._stopping.is_set():
                self._changed.clear()
                is_idle = not self._running  # before the look: what ends meanwhile may be due again
                if not await self._look() and is_idle and until_idle:
                    return
                # Not wait_for: on Python 3.11, it can swallow a cancellation.
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._pause_s()):
                        await self._changed.wait()
        finally:
            over.set()
            if self._running:  # cancelled, as by Ctrl-C: the runs do not know that yet
                self.stop()
            pid, running = os.getpid(), count(len(self._running), "run")
            _logger.info("worker %d stops: %s to its next safe point", pid, running)
            await self._drain()
            _logger.info("worker %d has stopped", pid)

    # -- the queue

    def _watch(self, over: threading.Event) -> None:
        """Wakes the worker when the store says that runs may have become due."""
        while not over.is_set():
            try:
                changed = self._queue.wait(LOOK_MAX_S)
            except Exception:  # the look itself reports it
                changed = False
                time.sleep(1)
            if changed:
                self._wake()

    def _wake(self) -> None:
        loop, changed = self._loop, self._changed
        if loop is not None and changed is not None:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(changed.set)

    def _pause_s(self) -> float:
        """Until the next look: a run whose agent raised may be due before the queue says so. If its
        pause was over at the last look, it was begun, or something else keeps it."""
        if not self._room:
            return LOOK_FULL_S
        now, left = time.monotonic(), [until for until, _ in self._pauses.values()]
        return min([LOOK_MAX_S, *(until - now for until in left if until > self._judged)])

    @property
    def _room(self) -> int:
        return self.settings.concurrency - len(self._running)

    async def _look(self) -> int:
        """Begin what is due, as far as there is room; how many due runs it does not leave alone."""
        room = self._room
        if not room and time.monotonic() < self._looked + LOOK_FULL_S:
            return 1
        self._judged = time.monotonic()
        try:
            due = await asyncio.to_thread(
                self._queue.find, due=True, agents=tuple(self._names), limit=CHOSEN_MAX
            )
            full = await asyncio.to_thread(self._admission.full)
            if not due:
                await asyncio.to_thread(self._tell_of_strangers)
        except (LogError, OSError, RuntimeError) as exc:  # it may be that no thread can be started
            outages = self.stats.store_errors - self._store_errors
            if not (outages and isinstance(exc, UnreachableError)):  # else the store has told
                self._store_errors += 1
                if time.monotonic() >= self._warned + LOOK_MAX_S:
                    self._warned = time.monotonic()
                    text = "worker: the store could not be read, and is tried again: %s"
                    _logger.warning(text, quoted(str(exc)))
            return 1
        self._looked, self._due = time.monotonic(), len(due)
        self._forget(due)
        begun = 0
        for found in due:
            if begun == room or self._stopping.is_set():
                break
            entry = replace(found, agent=self._names[found.agent])
            if self._is_put_off(entry) or full.has(entry):
                continue
            full.add(entry)
            self._start(entry)
            begun += 1
        return sum(entry.run_id not in self._quarantined for entry in due)

    def _tell_of_strangers(self) -> None:
        """Warn, once for each, of agents that runs were submitted for and this worker lacks, and of
        runs whose log cannot be read."""
        if time.monotonic() < self._told + LOOK_MAX_S:
            return
        found = self._queue.find(states=("submitted", *BROKEN), limit=CHOSEN_MAX)
        self._told = time.monotonic()
        for entry in found:
            if entry.state in BROKEN:
                if entry.agent in ("", *self._names) and entry.run_id not in self._broken:
                    self._broken.add(entry.run_id)
                    _logger.error(
                        "run %s is %s, and left alone. See `recovery show %s%s`",
                        entry.run_id,
                        entry.state,
                        entry.run_id,
                        store_option(self.store.backend),
                    )
            elif entry.agent not in self._names and entry.agent not in self._strangers:
                self._strangers.add(entry.agent)
                _logger.warning(
                    "run %s waits for agent %s, which this worker does not have (it has %s)",
                    entry.run_id,
                    quoted(entry.agent),
                    ", ".join(self.agents),
                )

    def _forget(self, due: list[RunEntry]) -> None:
        """Drop what is known of runs that are not due any more."""
        if len(due) < CHOSEN_MAX:
            left = {entry.run_id for entry in due}
            for known in (self._quarantined, self._pauses):
                for run_id in [one for one in known if one not in left | self._running.keys()]:
                    del known[run_id]

    def _is_put_off(self, entry: RunEntry) -> bool:
        if entry.run_id in self._running:
            return True
        until, _ = self._pauses.get(entry.run_id, (0.0, 0.0))
        lsn, _ = self._quarantined.get(entry.run_id, (-1, ""))
        return until > time.monotonic() or lsn == entry.last_lsn

    # -- one run

    def _start(self, entry: RunEntry) -> None:
        task = asyncio.create_task(self._execute(entry), name=f"run {entry.run_id}")
        self._running[entry.run_id] = task
        task.add_done_callback(lambda _: self._over(entry))

    def _over(self, entry: RunEntry) -> None:
        del self._running[entry.run_id]
        self._wake()

    async def _execute(self, entry: RunEntry) -> None:
        run_id, agent = entry.run_id, self.agents[entry.agent]
        if await self._quarantine(entry):
            return
        outcome, session = "finished", self._admission.session(entry)
        try:
            await agent.run_session(RECORDED, session)
            _logger.info("run %s: finished", run_id)
        except (LogLockedError, NotNowError) as exc:  # another worker has it, or its place
            self._put_off(run_id, random.uniform(0.05, 0.5))
            _logger.debug("run %s: %s", run_id, exc)
            return
        except FencedError as exc:  # its lease had ended: this process was stopped, or cut off
            outcome = "taken over"
            _logger.warning("run %s: %s", run_id, quoted(str(exc)))
        except StoppedError:
            outcome = "stopped"
            _logger.info("run %s: stopped, and free for other workers", run_id)
        except InDoubtError as exc:
            outcome = "in doubt"
            _logger.warning("run %s: %s", run_id, quoted(str(exc)))
        except ParkedError as exc:
            outcome = "parked"
            _logger.info("run %s: %s", run_id, quoted(str(exc)))
        except ENDED as exc:
            outcome = "failed"
            _logger.warning("run %s: %s", run_id, session.told(exc))
        except UnreachableError as exc:
            outcome = "unreachable"
            self._put_off(run_id, RETRY_MIN_S)
            _logger.info("run %s: %s", run_id, quoted(str(exc)))
        except Exception as exc:
            outcome = "error"
            _, before_s = self._pauses.get(run_id, (0.0, RETRY_MIN_S / 2))
            self._put_off(run_id, min(2 * before_s, RETRY_MAX_S))
            _logger.warning("run %s: %s", run_id, session.told(exc))
        self._ended[entry.agent, outcome] += 1
        if outcome not in ("error", "unreachable"):
            self._pauses.pop(run_id, None)

    def _put_off(self, run_id: str, pause_s: float) -> None:
        self._pauses[run_id] = (time.monotonic() + pause_s, max(pause_s, RETRY_MIN_S / 2))

    async def _quarantine(self, entry: RunEntry) -> bool:
        """Whether the run is left to a person: it gets no further by being resumed."""
        if entry.state == "submitted":
            return False
        try:
            found = await asyncio.to_thread(status, self.store, entry.run_id)
        except Exception as exc:  # it says more when it is resumed
            _logger.debug("run %s: no status: %r", entry.run_id, exc)
            return False
        why = found.stuck(self.settings.max_crashes)
        if not why:
            return False
        told, error = quoted(why), found.error
        if error is not None and error.is_sealed and why == str(error):
            told = quoted(str(replace(error, message=SEALED_TEXT)))
        if self.settings.retry_quarantined and entry.run_id not in self._seen:
            self._seen.add(entry.run_id)
            _logger.info("run %s is resumed once more: %s", entry.run_id, told)
            return False
        self._quarantined[entry.run_id] = (entry.last_lsn, why)
        _logger.error(
            "run %s is left alone: %s. See `recovery show %s%s`; %s",
            entry.run_id,
            told,
            entry.run_id,
            store_option(self.store.backend),
            "resolve the call (`recovery resolve`), and a worker takes it"
            if why.startswith("in doubt")
            else "when it is mended, start a worker with --retry-quarantined, or use `recovery "
            "resume`",
        )
        return True

    async def _drain(self) -> None:
        """Wait until the runs have stopped. Those that do not in time end with the process."""
        if self._running:
            await asyncio.wait(self._running.values(), timeout=self.settings.grace_s)
        for task in self._running.values():
            task.cancel()


def agents_by_name(
    agents: Any, store: CheckpointStore | str | os.PathLike[str] | None
) -> dict[str, RecoverableAgent[Any]]:
    """The agents of a worker by name, all with one store; TypeError, ValueError if that is
    impossible."""
    if not isinstance(agents, Mapping):
        several = agents if isinstance(agents, list | tuple) else [agents]
        functions = [one.agent_fn if isinstance(one, RecoverableAgent) else one for one in several]
        names = [function_name(one) for one in functions]
        if len({*names}) != len(names):
            raise ValueError(f"two agents have one name ({', '.join(names)}): give a dict of them")
        agents = dict(zip(names, several, strict=True))
    if not agents:
        raise ValueError("a worker needs an agent")
    stores = [one.store for one in agents.values() if isinstance(one, RecoverableAgent)]
    shared = stores[0] if store is None and stores else store
    if not isinstance(shared, CheckpointStore):
        if shared is None:
            raise ValueError("say where the runs are: store=, or RecoverableAgents with a store")
        shared = CheckpointStore(shared)
    found: dict[str, RecoverableAgent[Any]] = {}
    for name, one in agents.items():
        found[name] = one if isinstance(one, RecoverableAgent) else RecoverableAgent(one, shared)
        if store is not None:
            found[name].store = shared
    check_one_store([one.store for one in found.values()])
    return found
