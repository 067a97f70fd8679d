"""A store that somebody is at who can write to it: random operations, and what comes of them.

    run_cases(seed, count, folder)

Runs of one agent, in all states in which they wait for people. Somebody copies, moves, links, cuts,
exchanges and removes what is there, puts back what was there, and puts in messages and logs of his
own: between two commands, and while one looks. Whatever he does,

- nothing outside of the store is touched, read from a link or not;
- nothing is paid that was not approved, for this run and this call (where the store is in clear and
  nobody signs, he may approve by himself; he does not here, and copies what others have approved);
- nothing is done twice under one idempotency key, unless the log of the run is an older one, sound:
  nothing can tell that;
- each command ends with a code of its own and without a traceback, and shows nothing raw; who
  resumes a run gets an error of ours, or the run goes on.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import shutil
import stat
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any
from unittest import mock

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from eventlog import EventLog, LogError
from eventlog.encryption import Encryption
from recovery import CheckpointStore, RecoverableAgent, RecoveryError, Run, current_call, tool
from recovery.agent.run import execution_of
from recovery.approvers import Approvers
from recovery.control.cancel import cancel
from recovery.control.send import approve, deny, pending, signal
from recovery.inspect.status import runs, status
from recovery.journal.inbox_messages import Message
from recovery.journal.signed_statement import content_of
from recovery.ops.fork import fork
from recovery.stores.file import FileStore
from recovery.values.pack import pack
from tests.cli.commands import how, registered
from tests.cli.fuzz import check
from tests.cli.harness import call
from tests.support.lives import Died

KEY, HIS_KEY = bytes(range(32)), bytes(32)
PEOPLE = {
    who: Ed25519PrivateKey.from_private_bytes(who.encode() * 10 + b"xx") for who in ("ann", "eve")
}
KINDS = ("clear", "encrypted", "signed", "encrypted and signed")
RAW_NAME = "\x1b]0;x\x07\nnext: rm"

Rng = random.Random
Effect = tuple[str, str, str]  # what was done, in which run (by its uid), under which key

done: Counter[Effect] = Counter()
dies: list[bool] = []
_uid: ContextVar[str] = ContextVar("uid")


def _does(what: str) -> None:
    made = current_call()
    assert made is not None
    done[what, _uid.get(), made.idempotency_key] += 1


@tool(needs_approval=True)
def pay(cents: int) -> str:
    _does("pay")
    return f"paid {cents}"


@tool
def note(text: str) -> str:
    _does("note")
    if dies:
        raise Died
    return text


async def refund(run: Run) -> list[Any]:
    _uid.set(execution_of(run).uid)
    got: list[Any] = []
    async for step in run.steps():
        match step:
            case 1:
                got.append(await run.call(note, "begun"))
            case 2:
                got.append(await run.call(pay, 900))
            case 3:
                got.append(await run.wait_for("go"))
                done["go", execution_of(run).uid, "go"] = 1
            case 4:
                got.append(await run.call(pay, 7))
            case _:
                return got
    return got


async def family(run: Run) -> Any:
    _uid.set(execution_of(run).uid)
    await run.call(note, "a family")
    return await run.child(refund, "task", park_after_s=0)


AGENTS = {"parent": family}


_stores: list[CheckpointStore] = []


def at_hand() -> RecoverableAgent[Any]:
    """For the command line: the agent, and who may approve."""
    return runner(_stores[-1])


def store_at(root: Path, kind: str, key: bytes = KEY, whose: str = "ann") -> CheckpointStore:
    """The store of whoever has these keys."""
    encryption = Encryption(key) if "encrypted" in kind else None
    public = PEOPLE[whose].public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
    known = Approvers({whose: public}, ("signal", "cancel")) if "signed" in kind else None
    return CheckpointStore(FileStore(root, encryption=encryption), approvers=known)


def runner(store: CheckpointStore, agent: Any = refund) -> RecoverableAgent[Any]:
    return RecoverableAgent(agent, store, park_after_s=0, max_recoveries=0)


def go(store: CheckpointStore, run_id: str) -> Any:
    agent = runner(store, AGENTS.get(run_id, refund))
    return asyncio.run(agent.run_with_recovery("task", run_id))["result"]


def parked(store: CheckpointStore, run_id: str) -> None:
    with suppress(RecoveryError, Died):
        go(store, run_id)


# -- the store as it is before


@dataclass
class World:
    """A store, what he has beside it, and what was approved and done in truth."""

    folder: Path
    kind: str
    approved: set[tuple[str, str]] = field(default_factory=set)
    signalled: set[str] = field(default_factory=set)
    ended: set[str] = field(default_factory=set)
    done: Counter[Effect] = field(default_factory=Counter)

    @property
    def root(self) -> Path:
        return self.folder / "store"

    @property
    def store(self) -> CheckpointStore:
        return store_at(self.root, self.kind)

    def yes(self, run_id: str, whose: str = "ann", root: str = "store") -> None:
        """Somebody who may approves the call of the run that asks."""
        store = store_at(self.folder / root, self.kind, (HIS_KEY, KEY)[whose == "ann"], whose)
        uid, sign = status(store, run_id).uid, PEOPLE[whose].sign if "signed" in self.kind else None
        for asked in pending(store, run_id):
            approve(store, run_id, asked, who=whose, sign=sign)
            if whose == "ann" or self.kind == "clear":  # a log of his own is his own
                self.approved.add((uid, asked.idempotency_key))

    def go_on(self, run_id: str) -> None:
        """Somebody who may signals the run."""
        sign = PEOPLE["ann"].sign if "signed" in self.kind else None
        signal(self.store, run_id, "go", 1, who="ann", sign=sign)
        self.signalled.add(status(self.store, run_id).uid)

    def stash(self, name: str) -> None:
        """What he has kept of how it was."""
        shutil.copytree(self.root, self.folder / "outside" / name)


def build(folder: Path, kind: str) -> World:
    """Runs that wait for people, and earlier states of them; and runs of his own."""
    world = World(folder, kind)
    store, sign = world.store, PEOPLE["ann"].sign if "signed" in kind else None
    done.clear()
    for run_id in ("asks", "approved", "paid", "told", "denied", "ends", "parent", "over"):
        parked(store, run_id)
    dies.append(True)
    parked(store, "doubt")
    dies.clear()
    fork(store, "asks", "forked")
    fork(store, "approved", "forked_approved")
    fork(store, "doubt", "forked_doubt")
    world.stash("early")
    world.yes("paid")
    world.yes("over")
    parked(store, "paid")
    parked(store, "over")
    world.go_on("over")
    parked(store, "over")
    world.yes("over")
    parked(store, "over")
    world.yes("approved")
    world.stash("later")
    deny(store, "denied", pending(store, "denied")[0], who="ann", sign=sign)
    world.go_on("paid")
    with store.backend.claim("ends"):
        cancel(store, "ends", who="ann", sign=sign)
    world.ended.add(status(store, "ends").uid)
    his = store_at(folder / "outside" / "his", kind, HIS_KEY, "eve")
    for run_id in ("asks", "approved"):
        parked(his, run_id)
        world.yes(run_id, "eve", "outside/his")
    other = folder / "outside" / "other"
    other.mkdir()
    for name in ("LOCK", "MARK", "00000001.seg", "page.html"):
        (other / name).write_bytes(b"not yours: " + name.encode())
    world.done = done.copy()
    return world


def copied(world: World, folder: Path) -> World:
    """The same, anew."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(world.folder, folder, symlinks=True)
    return replace(world, folder=folder, approved={*world.approved})


def tree(place: Path) -> dict[str, Any]:
    """All that is there, byte by byte, with its modes."""
    found: dict[str, Any] = {}
    for path in sorted(place.rglob("*")):
        mode = path.lstat().st_mode
        found[str(path)] = mode, path.read_bytes() if stat.S_ISREG(mode) else None
    return found


# -- what he does


class Intruder:
    """Who can write to the store, and read what he has kept; he has none of the keys."""

    def __init__(self, world: World, rng: Rng) -> None:
        self.world, self.rng = world, rng
        self.root, self.outside = world.root, world.folder / "outside"
        self.log: list[str] = []
        messages = (self.outside, self.root)
        self._records = [one for place in messages for one in self._inboxes(place)]

    def act(self) -> None:
        """One thing. He changes nothing outside of the store himself."""
        way = self.rng.choice(WAYS)
        with suppress(OSError, shutil.Error, LogError, ValueError):
            said = way(self)
            self.log.append(f"{way.__name__} {said}")

    def _own(self, path: Path) -> Path:
        """The path itself; OSError where it leads out of the store."""
        if not Path(os.path.realpath(path.parent)).is_relative_to(self.root):
            raise OSError("not in the store")
        return path

    def _gone(self, path: Path) -> Path:
        if self._own(path).is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
        return path

    def _there(self, *places: Path) -> Path:
        """Something that is there: directories of runs and inboxes more often than files."""
        place = self.rng.choice(places or (self.root,))
        found = [path for path in sorted(place.rglob("*")) if "browse" not in path.name]
        directories = [path for path in found if path.is_dir()]
        return self.rng.choice(directories if directories and self.rng.random() < 0.5 else found)

    def _anything(self) -> Path:
        return self._there(self.root, self.outside, self.outside)

    def _place(self, like: Path) -> Path:
        """Where to put it: mostly where something of its kind is, under its own name."""
        there = [path for path in sorted(self.root.iterdir()) if path.is_dir()]
        run = self.rng.choice(there)
        match self.rng.randrange(5):
            case 0:
                return self._there()
            case 1:
                return run / self.rng.choice(("inbox", "00000002.seg", "new", RAW_NAME))
            case 2:
                return self.root / self.rng.choice(("new", "asks.", RAW_NAME))
        if like.name == "inbox":
            return run / "inbox"
        if like.is_dir():
            return run
        names = like.name, "MARK", "LOCK", "00000001.seg"
        return (run / "inbox" if self.rng.random() < 0.5 else run) / self.rng.choice(names)

    def copy_inbox(self) -> str:
        return self.copy(self.rng.choice(sorted(self.world.folder.rglob("inbox"))))

    def copy(self, source: Path | None = None) -> str:
        source = source or self._anything()
        to = self._place(source)
        if source.is_dir():
            kept = self.world.folder / "kept"
            shutil.rmtree(kept, ignore_errors=True)
            shutil.copytree(source, kept, symlinks=True)
            kept.rename(self._gone(to))
        else:
            shutil.copy2(source, self._gone(to), follow_symlinks=False)
        return f"{source} -> {to}"

    def move(self) -> str:
        source = self._own(self._there())
        to = self._place(source)
        aside = self.root / "aside"
        source.rename(aside)
        aside.rename(self._gone(to))
        return f"{source} -> {to}"

    def swap(self) -> str:
        one, other = self._own(self._there()), self._own(self._there())
        if one.parent == self.root:
            other = self.rng.choice([p for p in sorted(self.root.iterdir()) if p.is_dir()])
        aside = self.root / "aside"
        one.rename(aside)
        other.rename(one)
        aside.rename(other)
        return f"{one} <-> {other}"

    def link(self) -> str:
        source = self._anything()
        to = self._place(source)
        target: Path | str = source
        if self.rng.random() < 0.3:
            target = os.path.relpath(source, to.parent)
        self._gone(to).symlink_to(target)
        return f"{to} -> {target}"

    def hard_link(self) -> str:
        source = self._anything()
        to = self._place(source)
        if source.is_dir():
            files = [path for path in sorted(source.iterdir()) if path.is_file()]
            source = self.rng.choice(files or [source])
            to = to / source.name
        os.link(source, self._gone(to), follow_symlinks=False)
        return f"{to} = {source}"

    def remove(self) -> str:
        return str(self._gone(self._there()))

    def change(self) -> str:
        """Cut a file, or put bytes of another one behind or into it."""
        path = self._own(self._there())
        if path.is_symlink() or not path.is_file() or path.stat().st_nlink > 1:
            raise OSError("not his")
        data = bytearray(path.read_bytes())
        at = self.rng.randrange(len(data) + 1)
        match self.rng.randrange(3):
            case 0:
                del data[at:]
            case 1:
                other = self._anything()
                data += other.read_bytes() if other.is_file() else b"\0" * 100
            case _:
                data[at : at + 1] = self.rng.randbytes(1)
        path.write_bytes(data)
        return f"{path} at {at}"

    def odd(self) -> str:
        """Something that is no file and no directory, or a directory where a file was."""
        to = self._gone(self._place(self._there()))
        if self.rng.random() < 0.5:
            os.mkfifo(to)
        else:
            to.mkdir()
        return str(to)

    def message(self) -> str:
        """A message of others, again or changed; or one of his own, in the name of somebody."""
        there = [path for path in sorted(self.root.iterdir()) if path.is_dir()]
        inbox = self._own(self.rng.choice(there) / "inbox")
        if inbox.is_symlink() or any(path.stat().st_nlink > 1 for path in inbox.glob("*")):
            raise OSError("it leads out of the store")
        decisions = [one for one in self._records if one[0] == "decision"]
        kind, body, time_ns = self.rng.choice(self.rng.choice((self._records, decisions)))
        body = {**body}
        if "signed" in self.world.kind or "encrypted" in self.world.kind:
            time_ns = self._forge(inbox.parent.name, body, kind, time_ns)
        # In clear, or under a key of his own. Where people sign he may well have that of the store.
        keys = [None, Encryption(HIS_KEY), Encryption(KEY)][: 2 + ("signed" in self.world.kind)]
        key = self.rng.choice(keys) if "encrypted" in self.world.kind else None
        with EventLog.open(inbox, encryption=key) as log:
            log.append(kind, body, time_ns=time_ns)
        return f"{kind} {body} into {inbox}"

    def _forge(self, run_id: str, body: dict[str, Any], kind: str, time_ns: int) -> int:
        """As he would who knows all, the private key of those who may decide apart."""
        with suppress(RecoveryError, LogError, OSError, LookupError):
            body["uid"] = status(self.world.store, run_id).uid
            asked = pending(self.world.store, run_id)[0]
            if kind == "decision":
                packed = pack([list(asked.args), asked.kwargs], "")
                body |= {
                    "of": asked.idempotency_key,
                    "call": asked.lsn,
                    "approved": True,
                    "content": content_of(packed),
                }
        body["who"] = self.rng.choice(("ann", "ann", "eve", "bob"))
        time_ns = self.rng.choice((time_ns, time.time_ns(), 1 << 62))
        if self.rng.random() < 0.5:
            body["signature"] = self.rng.randbytes(64)
        elif self.rng.random() < 0.7 and "of" in body:
            said = Message(
                0,
                time_ns,
                "decision",
                body["of"],
                body["who"],
                body.get("why", ""),
                True,
                body["uid"],
                content=body.get("content", ""),
            )
            body["signature"] = PEOPLE["eve"].sign(said.statement.to_bytes())
        return time_ns

    def _inboxes(self, place: Path) -> Iterator[tuple[str, dict[str, Any], int]]:
        """What was ever sent, as far as he knows: all of it. (He may have looked on.)"""
        for inbox in sorted(place.rglob("inbox")):
            for key in (KEY, HIS_KEY):
                with suppress(LogError):
                    given = Encryption(key) if "encrypted" in self.world.kind else None
                    with EventLog.read(inbox, encryption=given) as log:
                        for record in log.records():
                            yield record.kind, dict(record.body), record.time_ns


WAYS: list[Callable[[Intruder], str]] = [
    *[Intruder.copy] * 5,
    *[Intruder.copy_inbox] * 4,
    *[Intruder.message] * 5,
    *[Intruder.swap] * 2,
    *[Intruder.link] * 3,
    *[Intruder.hard_link] * 2,
    Intruder.move,
    Intruder.remove,
    Intruder.change,
    Intruder.odd,
]


@contextmanager
def looked_on(intruder: Intruder, calls: int) -> Iterator[None]:
    """He acts when so many files and directories have been opened; 0: not at all."""
    real, left = os.open, [calls]
    busy: list[bool] = []

    def opened(*args: Any, **options: Any) -> int:
        if not busy:
            left[0] -= 1
            if not left[0]:
                busy.append(True)
                intruder.log.append("meanwhile:")
                intruder.act()
                busy.clear()
        return real(*args, **options)

    with mock.patch("os.open", opened):
        yield


# -- a case

# Commands that have no words of their own elsewhere, or other ones.
EXTRA = [
    "recovery doctor --store .",
    "recovery gc --store . --older-than 1s --yes",
    "recovery resume --store . {run} --agent tests.contract.hostile_stores:at_hand",
    "recovery rm --store . {run} --force --yes",
    "recovery undo --store . {run} --yes",
    "logdump timeline {run} -o ../page.html",
]
# They are what a person says in truth, and make that something counts.
IN_TRUTH = {"recovery approve", "recovery resolve", "recovery retry", "recovery accept"}


def commands() -> list[str]:
    """All of both tools, with the words behind them."""
    found = list(EXTRA)
    for command in registered():
        about = how(command)
        if not about.elsewhere and command not in IN_TRUTH:
            found += [f"{command} {words}" for words in (about.words, *about.variants)]
    return found


def lengths(world: World) -> dict[str, int]:
    """How long the log of each run is, by the run's uid."""
    found: dict[str, int] = {}
    encryption = Encryption(KEY) if "encrypted" in world.kind else None
    for path in sorted(world.root.iterdir()):
        with (
            suppress(LogError, OSError, ValueError, KeyError),
            EventLog.read(path, encryption=encryption) as log,
        ):
            for first in islice(log.records(), 1):
                found[str(first.body["uid"])] = log.tail().next_lsn
    return found


class Case:
    """One sequence of operations, commands and resumptions."""

    def __init__(self, seed: str, templates: dict[str, World], folder: Path) -> None:
        self.rng, self.seed, self.wrong = random.Random(seed), seed, list[str]()
        self.world = copied(templates[self.rng.choice(KINDS)], folder / "case")
        _stores[:] = [self.world.store]
        done.clear()
        done.update(self.world.done)
        self.run_ids, self.before = self.world.store.backend.run_ids(), lengths(self.world)
        self.older: set[str] = set()
        self.intruder = Intruder(self.world, self.rng)

    def run(self, called: list[str]) -> None:
        """He acts, people look, and the runs are resumed."""
        outside = tree(self.world.folder / "outside")
        for _ in range(self.rng.choice((1, 1, 2, 4, 8))):
            self.intruder.act()
        for words in self.rng.sample(called, 3):
            self._call(words.replace("{run}", self.rng.choice(self.run_ids)).split())
        for run_id in self.rng.sample([*self.run_ids, "new"], 6):
            self._resume(run_id)
            if self.rng.random() < 0.2:
                with suppress(RecoveryError, LogError, OSError):
                    self.world.yes(run_id)
        self._look()
        now = tree(self.world.folder / "outside")
        changed = [path for path in {*now, *outside} if now.get(path) != outside.get(path)]
        self._expect(not changed, f"outside of the store: {changed}")
        for (what, uid, key), times in done.items():
            asked = what == "pay" and (uid, key) not in self.world.approved
            self._expect(not asked, f"paid, and nobody approved it: {uid} {key}")
            sent = what != "go" or uid in self.world.signalled
            self._expect(sent, f"signalled, and nobody signalled it: {uid}")
            again = times > 1 and uid not in self.older
            self._expect(not again, f"{what} {times} times in {uid} under {key}")

        for one in runs(self.world.store):
            ended = one.state == "cancelled" and one.uid not in self.world.ended
            self._expect(not ended, f"cancelled, and nobody cancelled it: {one.run_id}")

    def _call(self, words: list[str]) -> None:
        key = {"EVENTLOG_KEY": KEY.hex()} if self.rng.random() < 0.8 else {}
        if words[1] == "cancel":  # in truth, and its children with it
            named = [run_id for run_id in self.run_ids if run_id in words]
            with suppress(RecoveryError, LogError, OSError):
                uids = {status(self.world.store, run_id).uid for run_id in named}
                self.world.ended |= {*self.before} if "parent" in named else uids

        def command() -> None:
            check(call(*words[:1], *words[1:], cwd=self.world.root, env=key))

        self._watched(command, " ".join(words))

    def _resume(self, run_id: str) -> None:
        self._watched(lambda: go(self.world.store, run_id), f"resume {run_id}")

    def _watched(self, act: Callable[[], object], what: str) -> None:
        """Do it, he meanwhile as well now and then; what it ends with is of ours."""
        self._look()
        self.intruder.log.append(what)
        try:
            calls = self.rng.choice((0, 0, self.rng.randrange(1, 60)))
            with looked_on(self.intruder, calls):
                act()
        except (RecoveryError, LogError):
            pass
        except OSError as exc:
            self._expect(exc.filename, f"{what}: {exc!r} names no file")
        except Exception as exc:
            text = "".join(traceback.format_exception(exc)[-8:])
            self._expect(False, f"{what}: {exc!r}\n{text}")

    def _look(self) -> None:
        """Which logs are not as long as they were: what these runs did since, they may repeat."""
        now = lengths(self.world)
        self.older |= {uid for uid, lsn in self.before.items() if now.get(uid, 0) < lsn}

    def _expect(self, true: object, what: str) -> None:
        if not true:
            steps = "".join(f"\n    {one}" for one in self.intruder.log)
            self.wrong.append(f"case {self.seed} ({self.world.kind}): {what}{steps}")


def run_cases(seed: str, count: int, folder: Path) -> list[str]:
    """What is wrong with what so many cases have led to: nothing, if all is well."""
    called, wrong = commands(), list[str]()
    logging.disable(logging.CRITICAL)
    try:
        templates = {kind: build(folder / kind.replace(" ", "_"), kind) for kind in KINDS}
        for number in range(count):
            case = Case(f"{seed} {number}", templates, folder)
            case.run(called)
            wrong += case.wrong
    finally:
        logging.disable(logging.NOTSET)
    return wrong
