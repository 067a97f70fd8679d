"""Nothing of a subject, nor of an encrypted store, is told without its key: canaries, looked for.

Agents plant texts in all that belongs to a subject. Their runs die, park, fail, drift and diverge,
and are forked, copied, exported and forgotten. Then the texts are looked for in all that was
written or told.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import re
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from eventlog.encryption import Encryption
from eventlog.testing import SimulatedDisk
from eventlog.testing import disk as disks
from recovery import (
    CheckpointStore,
    RecoverableAgent,
    Resolution,
    Retry,
    ToolError,
    current_run,
    tool,
)
from recovery.call_journal import CallJournal
from recovery.errors import InDoubtError, ParkedError
from recovery.integrations.otel import SpanOptions
from recovery.ops.copy_run import copy_run
from recovery.stores.log_store import LogStore
from recovery.subjects import personal
from recovery.values import sealed
from recovery.values.pack import pack
from recovery.values.types import digest
from recovery.worker import Worker
from tests.cli.harness import call
from tests.support.lives import Died
from tests.support.told_spans import told_live

WHO = "c4nary-who"
PLANTED: dict[str, str] = {}  # by the part of each that is looked for
LIFE, VERSION = [0], [1]  # of the run at hand, and of its code
LIVES = 5
PAGES = Path(__file__).parents[4] / "docs"


# What is told all the same, and the words of the page that say so.
KEYS = "In one document of the store: `.subjects/keys` in a directory of runs, of mode 0600."
PLAIN = "All of these read as plain values while the key exists."
RAISED = {r"error (RunFailed|Tool|ChildFailed)Error c4nary-(resolved|raised)-v\d": PLAIN}
SUBJECT = {rf"(written|file home/.subjects/keys) {WHO}": KEYS}
SIGNAL = "**A signal** is encrypted if the run has a subject, not because a call of it has one."
SIGNALS = {r"(file home/waits/.*|written|span|logdump \w+|recovery \w+) c4nary-signal-v1": SIGNAL}
TOLD = {"calls": RAISED | SUBJECT | SIGNALS, "runs": RAISED | SUBJECT, "store": {}}

LOGDUMP = [
    ["dump", "--json", "RUN"],
    ["dump", "--full", "RUN"],
    ["export", "RUN"],
    ["otlp", "--content", "RUN"],
]
RECOVERY = [["show", "--json", "RUN"], ["runs", "--json"], ["status", "--json"]]


def canary(name: str) -> str:
    """A text of the subject, another one in each version of the code."""
    mark = f"c4nary-{name}-v{VERSION[0]}"
    return PLANTED.setdefault(mark, f"{mark} {mark} of the subject")


@cache
def forms(mark: str, whole: str) -> tuple[bytes, ...]:
    """A text as msgpack, JSON and people write it, in hex and base64; and what a guess finds."""
    plain, packed = mark.encode(), pack(whole, "")
    coded = [  # at each position in what is encoded
        base64.b64encode(bytes(at) + plain)[4 if at else 0 : -4] for at in range(3)
    ]
    return (plain, plain.hex().encode(), digest(packed), hashlib.sha256(packed).digest(), *coded)


class OddError(Exception):
    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.held = {"deep": [text]}


def odd(name: str) -> dict[Any, Any]:
    """What cannot be recorded."""
    return {canary(f"{name}key"): object(), "x": canary(name)}


def reconcile(found: Any) -> Any:
    if LIFE[0] == 2:
        raise OddError(canary("reconciled"))
    return Resolution.outcome(canary("reconciled")) if LIFE[0] > 3 else canary("reconciled")


def cancel(found: Any, outcome: Any) -> str:
    if LIFE[0] == 1:
        raise OddError(canary("undoing"))
    return canary("undone")


@tool(after_crash="retry")
def plain_tool(text: str) -> str:
    return text


@tool(after_crash="retry")
def found_one(name: str) -> Any:
    return personal(WHO, {"x": canary("found")} if name == "found" else odd("foundodd"))


class Tools:
    """The tools of the agents below. Their calls belong to ``who``, or to the run as a whole."""

    recovery_key = "tools"

    def __init__(self, is_whole: bool) -> None:
        self.is_whole = is_whole
        again = {"after_crash": "retry"}
        options: dict[str, dict[str, Any]] = {
            "look_up": again,
            "metered": {**again, "usage": lambda value: int(f"{value}")},
            "book": {"undo": cancel},
            "approved": {"needs_approval": True},
            "flaky": {**again, "retry": Retry(2, delay_s=0)},
            "fails": again,
            "slow": {**again, "timeout_s": 0.01},
            "cut": {"timeout_s": 0.01},
            "spell": again,
            "gives_odd": {},
            "dies": {},
            "asked": {"reconcile": reconcile},
            "delegate": again,
        }
        for name, given in options.items():
            function = getattr(self, f"_{name}", self._look_up)
            whose: dict[str, Any] = {} if is_whole else {"subject": "who"}
            setattr(self, name, tool(name=name, **given, **whose)(function))

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)

    def _look_up(self, who: str, what: Any) -> Any:
        plain_tool(canary("nested"))
        return {"found": canary("result"), canary("key"): [canary("deep")]}

    def _flaky(self, who: str, what: Any) -> Any:
        raise OddError(canary("retried"))

    def _fails(self, who: str, what: Any) -> Any:
        try:
            raise OddError(canary("context"))
        except OddError:
            error = ValueError(canary("raised"))
            error.add_note(canary("note"))
            raise error from OddError(canary("cause"))

    async def _slow(self, who: str, what: Any) -> None:
        await asyncio.sleep(60)

    _cut = _slow

    async def _spell(self, who: str, what: Any) -> AsyncIterator[str]:
        yield canary("chunk")
        yield canary("chunk2")

    def _gives_odd(self, who: str, what: Any) -> Any:
        return odd("unrecordable")

    def _dies(self, who: str, what: Any) -> str:
        if LIFE[0] == 1:
            raise Died
        return canary("started")

    _asked = _dies

    async def _delegate(self, who: str, what: Any) -> Any:
        here: Any = current_run()
        return await here.child(self.child, what, max_recoveries=0)

    async def child(self, run: Any) -> str:
        run.messages.append(personal(WHO, canary("childtold")))
        await run.call(self.look_up, WHO, canary("childargument"))
        if LIFE[0] < 3:
            raise RuntimeError(canary("childraised"))
        return f"{run.task}"


# What agents do, each in a run of its own.


async def everything(run: Any, use: Tools) -> Any:
    what = canary("argument")
    got = await run.call(use.look_up, WHO, what)
    await run.call(use.metered, WHO, what)
    told = [personal(WHO, canary("told")), {"role": "tool", "content": got}, {"asked": what}]
    run.messages.extend([*told, await run.call(found_one, "found")])
    run.messages[0] = personal(WHO, {"changed": canary("changed")})
    run.state["got"], run.state["asked"] = [got], what
    run.state["told"] = personal(WHO, {"x": canary("state")})
    run.state["told"]["y"] = canary("state2")
    run.messages.append(
        {"chunks": "".join([one async for one in run.stream(use.spell, WHO, what)])}
    )
    for fails in (use.flaky, use.fails, use.slow):
        try:
            await run.call(fails, WHO, what)
        except (OddError, ValueError, TimeoutError, ToolError) as exc:
            run.messages.append({"role": "tool", "content": str(exc)})
            run.state["error"] = str(exc)
            if LIFE[0] == 2 and run.step == 2:
                raise RuntimeError(f"it said: {exc}" if fails is use.flaky else "x")  # noqa: B904
    run.messages.reverse()
    return got


async def cuts(run: Any, use: Tools) -> Any:
    async with run.stream(use.spell, WHO, canary("left")) as stream:
        async for one in stream:
            if LIFE[0] == 2:
                raise RuntimeError(one)
            break
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await run.call(tool(timeout_s=60, name="left")(use.slow), WHO, canary("cancelled"))
    return await run.call(use.cut, WHO, canary("argument"))


async def undoes(run: Any, use: Tools) -> Any:
    await run.call(use.book, WHO, canary("booked"))
    return await run.undo(tools=[use.book])


async def waits(run: Any, use: Tools) -> Any:
    said = await run.wait_for("said")
    return [personal(WHO, said), await run.call(use.approved, WHO, canary("argument"))][1]


async def doubts(run: Any, use: Tools) -> Any:
    got = await run.call(use.dies, WHO, canary("argument"))
    run.messages.append({"said": got})
    return await run.call(use.asked, WHO, canary("argument"))


async def delegates(run: Any, use: Tools) -> Any:
    got = await run.call(use.delegate, WHO, canary("childtask"))
    with CallJournal(None, f"{run.run_id}-journal", parent=run) as journal:
        await journal.call(use.look_up, WHO, canary("argument"), call_id="1")
        with pytest.raises((ValueError, ToolError)):
            await journal.call(use.fails, WHO, canary("argument"))
    return got


async def fails(run: Any, use: Tools) -> Any:
    if LIFE[0] == 3:
        await asyncio.gather(*[run.call(use.fails, WHO, canary(f"argument{n}")) for n in (1, 2)])
    try:
        await run.call(use.fails, WHO, canary("argument"))
    except (ValueError, ToolError) as exc:
        raise ExceptionGroup("several", [exc])  # noqa: B904


async def owns(run: Any, use: Tools) -> Any:
    """What is a subject's only because the run is."""
    if use.is_whole:
        run.messages.append(f"Dear {canary('own')}")
        run.state["own"] = {canary("ownkey"): canary("own")}
        await run.call(plain_tool, canary("own"))
        raise RuntimeError(canary("ownerror"))


async def refused(run: Any, use: Tools) -> Any:
    given = run.step if LIFE[0] == 1 else LIFE[0]
    if given == 2:
        run.messages.append(personal(WHO, odd("message")))
    if given == 3:
        run.state["odd"] = personal(WHO, odd("state"))
    if given == 4:
        return await run.call(use.look_up, WHO, odd("argument"))
    if given == 5:
        return await run.call(use.gives_odd, WHO, 1)
    return personal(WHO, odd("end")) if given == 1 else None


async def refused_found(run: Any, use: Tools) -> Any:
    return await run.call(found_one, "odd")


ACTS = [everything, cuts, undoes, waits, doubts, delegates, fails, owns, refused, refused_found]


class World:
    """A store, and all that is told of its runs. ``whose``: what belongs to the subject: the calls
    of its tools, its runs, or the whole store to the one key."""

    def __init__(self, whose: str, store: CheckpointStore) -> None:
        self.whose, self.use, self.store = whose, Tools(whose != "calls"), store
        self.told: list[tuple[str, str]] = []  # where, and what

    def agent(self, act: Callable[[Any, Tools], Any], **options: Any) -> RecoverableAgent:
        async def agent(run: Any) -> Any:
            async for step in run.steps():
                got = await act(run, self.use)
                await run.call(plain_tool, f"{step}")
                if step == 2 and LIFE[0] == 1:
                    raise Died
                if step == 3:
                    return got

        agent.__qualname__ = agent.__name__ = act.__name__
        options |= {"subject": WHO if self.whose == "runs" else None, "max_recoveries": 0}
        return RecoverableAgent(agent, self.store, 1, park_after_s=0, **options)

    def live(self, act: Callable[[Any, Tools], Any], run_id: str) -> None:
        """Let the run of an act die, park, fail and be resumed; its code is another one at last."""
        task = canary("task") if self.use.is_whole else "task"
        for LIFE[0] in range(1, LIVES + 1):
            VERSION[0] = max(1, LIFE[0] - 1) if LIFE[0] < LIVES else 1  # 1, 1, 2, 3, 1
            on_drift: Any = "report" if LIFE[0] == 3 else "stop"
            try:
                self.agent(act, on_drift=on_drift).run_with_recovery_sync(task, run_id)
            except Died:
                pass
            except Exception as exc:
                self.note(exc)
                handle = self.store.run(run_id)
                if isinstance(exc, InDoubtError):
                    way = Resolution.fail if LIFE[0] % 2 else Resolution.outcome
                    said: Any = canary("resolved")
                    if act is refused_found:  # no call of a subject, but its result is
                        way, said = Resolution.outcome, personal(WHO, {"x": said})
                    handle.resolve(exc.calls[0], way(said))
                elif isinstance(exc, ParkedError) and act is waits:
                    handle.signal("said", canary("signal"), key=f"{LIFE[0]}")
                    for asked in handle.pending():
                        handle.approve(asked)
        VERSION[0] = 1

    def note(self, exc: BaseException | None) -> None:
        """What the library's errors say."""
        if exc is not None:
            if type(exc).__module__.startswith(("recovery", "eventlog")):
                notes = getattr(exc, "__notes__", ())
                self.told.append((f"error {type(exc).__name__}", f"{exc} {notes}"))
            self.note(exc.__cause__ or (None if exc.__suppress_context__ else exc.__context__))


def found_in(found: bytes) -> set[str]:
    """The canaries in these bytes."""
    return {
        mark for mark, whole in PLANTED.items() if any(one in found for one in forms(mark, whole))
    }


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """All that is written to any file of a simulated disk, temporary ones too."""
    found, write = list[bytes](), disks._OpenFile.pwrite

    def pwrite(file: Any, data: bytes, offset: int) -> int:
        found.append(bytes(data))
        return write(file, data, offset)

    monkeypatch.setattr(disks._OpenFile, "pwrite", pwrite)
    return found


@pytest.mark.parametrize("whose", [*TOLD])
def test_nothing_is_told_without_its_key(
    whose: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, written: list[bytes]
) -> None:
    PLANTED.clear()
    PLANTED[WHO] = WHO
    sealed._OPENERS.clear()  # of lives that have died in another test, and whose disk says so
    caplog.set_level(1)
    disk, key = SimulatedDisk(), Encryption(bytes(32)) if whose == "store" else None
    world = World(whose, CheckpointStore(LogStore("home", disk, "power", key)))
    with (
        told_live(SpanOptions(content=True)) as (spans, _),
        warnings.catch_warnings(record=True) as warned,
    ):
        for act in ACTS:
            world.live(act, act.__name__)
        LIFE[0] = 3
        world.store.submit("owns", personal(WHO, canary("task")), "worked")
        Worker({"owns": world.agent(owns)}, max_crashes=1).run_sync(until_idle=True)
    world.store.run("everything").fork("fork", at_step=1)
    latest = world.store.load_latest("everything")
    assert latest is not None
    changes: Any = {"state": latest.state, "messages": [*latest.messages]}
    world.store.run("everything").fork("changed", at_step=2, **changes)
    copied = CheckpointStore(tmp_path, encryption=key)
    for run_id in world.store.backend.run_ids():
        copy_run(world.store.backend, copied.backend, run_id)
    told = [(f"log of {one.module}", caplog.handler.format(one)) for one in caplog.records]
    told += [("span", f"{spans.spans}"), ("warning", f"{[one.message for one in warned]}")]
    told = [*told, *world.told] if key is None else []  # it has left the store
    told += of_commands(copied, tmp_path)
    found = {(where, mark) for where, what in told for mark in found_in(what.encode())}
    found |= {("written", mark) for mark in found_in(b"\n".join(written))}
    for path, names in disk.directories.items():
        for name, file in names.items():
            there = found_in(bytes(file.content)) | found_in(f"{path}/{name}".encode())
            found |= {(f"file {path}/{name}", mark) for mark in there}
    said = {pair for pair in found for told in TOLD[whose] if re.fullmatch(told, " ".join(pair))}
    assert found == said
    assert len(PLANTED) > 50  # and where each is planted was reached
    page = " ".join((PAGES / "erase-a-person.md").read_text("utf-8").split())
    assert [words for words in TOLD[whose].values() if words not in page] == []


def of_commands(store: CheckpointStore, cwd: Path) -> Iterator[tuple[str, str]]:
    """What commands print that have no keys, and those that have, once the subject is forgotten."""
    sealed._OPENERS.clear()  # the keys of this process: from here on it is another one
    commands = [["logdump", *words] for words in LOGDUMP]
    if store.backend.encryption is None:
        assert CheckpointStore(cwd).forget(WHO) is not None
        commands += [["recovery", *words, "--store", "."] for words in RECOVERY]
    for words in commands:
        for run_id in ("everything", "fails", "waits") if "RUN" in words else ("",):
            done = call(*(word.replace("RUN", run_id) for word in words), cwd=cwd)
            yield " ".join(words[:2]), done.out + done.err
