"""The trust boundary: what counts for a run, from whom, and what is said of the rest."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import shutil
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from eventlog import EventLog, LogError
from eventlog.encryption import Encryption
from recovery import (
    Call,
    CheckpointStore,
    InDoubtError,
    RecoverableAgent,
    RecoveryError,
    Resolution,
    Retry,
    Run,
    tool,
)
from recovery.agent.run import execution_of
from recovery.approvers import Approvers, signing_key
from recovery.control.cancel import cancel
from recovery.control.relatives import children
from recovery.control.resolve import resolve
from recovery.control.send import approve, deny, pending, signal
from recovery.errors import ChildParkedError, RunCancelledError, RunFailedError, WaitingError
from recovery.inspect.status import status
from recovery.journal.events import CallDecided
from recovery.journal.signed_statement import Statement, content_of
from recovery.ops.fork import fork
from recovery.stores.file import FileStore
from recovery.values.pack import pack
from tests.cli.harness import Processes, call
from tests.support.lives import Died, recorded

RUN = "run"
KEY = bytes(range(32))
paid: list[int] = []


@tool(needs_approval=True)
def pay(cents: int) -> str:
    paid.append(cents)
    return f"paid {cents}"


async def refund(run: Any) -> list[Any]:
    return [await run.call(pay, 900), await run.wait_for("go"), await run.call(pay, 7)]


@pytest.fixture(autouse=True)
def no_money() -> None:
    paid.clear()


Store = Callable[[Path], CheckpointStore]


def clear(root: Path) -> CheckpointStore:
    return CheckpointStore(root)


def encrypted(root: Path) -> CheckpointStore:
    return CheckpointStore(FileStore(root, encryption=Encryption(KEY)))


STORES = pytest.mark.parametrize("store_of", [clear, encrypted])


def go(store: CheckpointStore, run_id: str = RUN, agent: Any = refund, **options: Any) -> Any:
    given = {"park_after_s": 0, "max_recoveries": 0} | options
    runner = RecoverableAgent(agent, store, **given)
    return asyncio.run(runner.run_with_recovery("task", run_id))["result"]


def parked(store: CheckpointStore, run_id: str = RUN, agent: Any = refund) -> None:
    with pytest.raises(WaitingError):
        go(store, run_id, agent)


# -- messages are bound to their run


def into_another_run(root: Path, store: CheckpointStore) -> str:
    parked(store, "other")
    return "other"


def into_a_fork(root: Path, store: CheckpointStore) -> str:
    """Whose call under way has the idempotency key that the message names."""
    fork(store, RUN, "forked")
    return "forked"


def into_a_run_begun_anew(root: Path, store: CheckpointStore) -> str:
    shutil.rmtree(root / RUN)
    parked(store)
    return RUN


@STORES
@pytest.mark.parametrize(
    "victim_of", [into_another_run, into_a_fork, into_a_run_begun_anew], ids=lambda f: f.__name__
)
@pytest.mark.parametrize("message", ["approve", "signal", "cancel"])
def test_a_copied_inbox_does_nothing_and_is_told_of(
    tmp_path: Path, store_of: Store, victim_of: Any, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The files are copied by somebody without the key."""
    root = tmp_path / "runs"
    store = store_of(root)
    parked(store)
    inbox = root / RUN / "inbox"
    if message == "approve":
        approve(store, RUN, pending(store, RUN)[0], who="ann")
    elif message == "signal":
        signal(store, RUN, "go", "now", key="once")
    else:
        with store.backend.claim(RUN):  # a live one, which is told to end by a message
            cancel(store, RUN, who="ann")
    shutil.copytree(inbox, tmp_path / "kept")
    victim = victim_of(root, store)
    shutil.copytree(tmp_path / "kept", root / victim / "inbox")

    parked(store, victim)  # neither approved nor cancelled
    assert paid == []
    (told,) = status(store, victim).unread
    assert told.refused == "it was sent to another run" and not told.wanted
    assert "does not count: it was sent to another run" in caplog.text
    if store_of is clear:
        shown = call("recovery", "show", victim, "--store", str(root), cwd=root).out
        assert "does not count: it was sent to another run" in " ".join(shown.split())

    # What is sent to the victim itself counts, also under the key of the copied message.
    approve(store, victim, pending(store, victim)[0], who="bob")
    parked(store, victim)
    signal(store, victim, "go", "mine", key="once")
    parked(store, victim)
    approve(store, victim, pending(store, victim)[0], who="bob")
    assert go(store, victim) == ["paid 900", "mine", "paid 7"]
    assert paid == [900, 7]


def test_a_message_of_a_longer_run_executes_nothing(tmp_path: Path) -> None:
    """It knows of more records than the run has: the log may be the one that was exchanged."""
    store = clear(tmp_path)
    parked(store)
    signal(store, RUN, "go", 1)
    approve(store, RUN, pending(store, RUN)[0])
    parked(store)
    approve(store, RUN, pending(store, RUN)[0])
    paid.clear()
    parked(store, "other")
    shutil.copytree(tmp_path / RUN / "inbox", tmp_path / "other" / "inbox")
    with pytest.raises(RecoveryError, match="its inbox knows of"):
        go(store, "other")
    assert paid == []


def in_clear(inbox: Path) -> EventLog:
    return EventLog.open(inbox)


def under_another_key(inbox: Path) -> EventLog:
    return EventLog.open(inbox, encryption=Encryption(os.urandom(32)))


@pytest.mark.parametrize("forged", [in_clear, under_another_key], ids=lambda f: f.__name__)
def test_without_the_key_no_message_can_be_made(tmp_path: Path, forged: Any) -> None:
    """Not even by somebody who knows the run's uid and the call's idempotency key."""
    store = encrypted(tmp_path)
    parked(store)
    (asked,) = pending(store, RUN)
    body = {
        "uid": status(store, RUN).uid,
        "of": asked.idempotency_key,
        "approved": True,
        "who": "ann",
        "why": "",
        "key": "",
    }
    with forged(tmp_path / RUN / "inbox") as inbox:
        inbox.append("decision", body)
    with pytest.raises(LogError, match=r"under|clear"):
        go(store)
    assert paid == []
    assert "clear" in (said := status(store, RUN).inbox_damage) or "key" in said


NONSENSE: dict[str, dict[str, Any]] = {
    "cancel by a number": {"who": 5, "why": ""},
    "cancel for a number": {"uid": 7},
    "decision without an answer": {"of": "0" * 32},
    "decision of a truthy answer": {"of": "KEY", "approved": "yes"},
    "signal without a value": {"name": "go"},
    "signal of a list": {"name": ["go"], "value": 1},
    "signal of no document": {},
}


@pytest.mark.parametrize("what", NONSENSE)
def test_a_message_that_makes_no_sense_is_told_of_and_stops_nobody(
    tmp_path: Path, what: str
) -> None:
    store = clear(tmp_path)
    parked(store)
    (asked,) = pending(store, RUN)
    body = {"uid": status(store, RUN).uid} | NONSENSE[what]
    body |= {"of": asked.idempotency_key} if body.get("of") == "KEY" else {}
    store.backend.post(RUN, what.split(maxsplit=1)[0], body)
    (told,) = status(store, RUN).unread
    assert told.refused.startswith("it makes no sense")
    parked(store)
    signal(store, RUN, "go", 1, key="k")  # and nobody who sends
    approve(store, RUN, asked)
    parked(store)
    assert paid == [900]


def test_messages_that_name_no_run_count_where_old_libraries_sent_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """In a run that an older library has begun, and in no other, nor in a fork of it."""

    def sent(run_id: str) -> list[bool]:
        body = {"name": "go", "value": run_id, "who": ""}
        store.backend.post(run_id, "signal", body)
        return [bool(one.refused) for one in status(store, run_id).unread]

    store = clear(tmp_path)
    parked(store, "new")
    monkeypatch.setattr("recovery.agent.begin_run.Rules", lambda version: None)
    parked(store, "old")
    fork(store, "old", "forked")
    assert [sent("old"), sent("new"), sent("forked")] == [[False], [True], [True]]
    approve(store, "old", pending(store, "old")[0])
    parked(store, "old")
    assert status(store, "old").unread == ()  # it was taken


# -- a child's log is kept as its parent's


def kept(root: Path, key: bytes | None = KEY, **other: Any) -> CheckpointStore:
    durability = other.pop("durability", "power")
    encryption = Encryption(key, **other.pop("given", {})) if key else None
    return CheckpointStore(FileStore(root, durability, encryption), **other)


CHILD_STORES: dict[str, Callable[[Path], CheckpointStore]] = {
    "in clear": lambda root: kept(root, None),
    "by its path alone": CheckpointStore,
    "under another key": lambda root: kept(root, bytes(32)),
    "under a key of another name": lambda root: kept(root, given={"key_id": "2"}),
    "which takes what is in clear": lambda root: kept(root, given={"accept_clear": True}),
    "which may lose it with the power": lambda root: kept(root, durability="process"),
    "which keeps less": lambda root: kept(root, retention="latest_only"),
    "elsewhere": lambda root: kept(root / "elsewhere"),
    "in memory": lambda root: CheckpointStore(),
}


def child_of(root: Path, store: CheckpointStore) -> Any:
    async def sub(run: Any) -> str:
        return f"{run.task} is kept"

    async def agent(run: Any) -> Any:
        return await run.child(RecoverableAgent(sub, store), "the secret")

    return go(kept(root), agent=agent)


@pytest.mark.parametrize("what", CHILD_STORES)
def test_a_child_whose_log_would_be_kept_otherwise_is_refused(tmp_path: Path, what: str) -> None:
    with pytest.raises(ValueError, match=r"lives in the store of its parent.*same CheckpointStore"):
        child_of(tmp_path, CHILD_STORES[what](tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == [RUN]


def test_a_child_in_a_store_like_its_parents_is_encrypted(tmp_path: Path) -> None:
    assert child_of(tmp_path, kept(tmp_path)) == "the secret is kept"
    written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert len({*tmp_path.iterdir()}) == 2 and not any(b"the secret" in one for one in written)


# -- who may say yes

ANN = Ed25519PrivateKey.from_private_bytes(b"a" * 32)
BOB = Ed25519PrivateKey.from_private_bytes(b"b" * 32)
MALLORY = Ed25519PrivateKey.from_private_bytes(b"m" * 32)


def public(key: Ed25519PrivateKey) -> bytes:
    return key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)


def ssh(key: Ed25519PrivateKey) -> str:
    return key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()


def pem(key: Ed25519PrivateKey) -> str:
    form = PublicFormat.SubjectPublicKeyInfo
    return key.public_key().public_bytes(Encoding.PEM, form).decode()


def key_file(path: Path, key: Ed25519PrivateKey) -> None:
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    path.chmod(0o600)


PEOPLE: dict[str, str | bytes] = {"ann": public(ANN), "bob": ssh(BOB)}


def guarded(root: Path) -> CheckpointStore:
    return CheckpointStore(root, approvers=PEOPLE)


def sent_again(store: CheckpointStore, **changes: Any) -> None:
    """The newest message once more, by somebody who has its bytes and no key."""
    inbox = store.backend.inbox(RUN)
    assert inbox is not None
    with inbox:
        record = list(inbox.records())[-1]
    body = {**record.body, **changes}
    time_ns = body.pop("time_ns", record.time_ns)
    store.backend.post(RUN, record.kind, body, str(body.pop("key")), time_ns)


SAID = {"approved": True, "who": "ann", "why": "as agreed"}


def forged(store: CheckpointStore, call: Call, **changes: Any) -> None:
    """A decision whose signature is by another key, or under something else than it says."""
    key = changes.pop("key", ANN)
    said = Statement(
        uid=status(store, RUN).uid,
        kind="decision",
        about=call.idempotency_key,
        answer="approved",
        who="ann",
        why="as agreed",
        time_ns=time.time_ns(),
        content=content_of(pack([list(call.args), call.kwargs], "")),
    )
    body = SAID | {"uid": said.uid, "of": said.about, "content": said.content}
    body["signature"] = key.sign(replace(said, **changes).to_bytes())
    store.backend.post(RUN, "decision", body, "", said.time_ns)


def by_the_shell(store: CheckpointStore, call: Call) -> None:
    """What a tool with a shell does: an approval as somebody else, past the check of the sender."""
    body = SAID | {"uid": status(store, RUN).uid, "of": call.idempotency_key}
    store.backend.post(RUN, "decision", body)


FORGERIES: dict[str, Callable[[CheckpointStore, Call], None]] = {
    "unsigned": by_the_shell,
    "by a stranger": lambda store, call: forged(store, call, key=MALLORY),
    "by another of them": lambda store, call: forged(store, call, key=BOB),
    "as somebody else": lambda store, call: forged(store, call, who="bob"),
    "of another run": lambda store, call: forged(store, call, uid="0" * 32),
    "of another call": lambda store, call: forged(store, call, about="0" * 32),
    "of a no": lambda store, call: forged(store, call, answer="denied"),
    "of another reason": lambda store, call: forged(store, call, why="no"),
    "of another time": lambda store, call: forged(store, call, time_ns=1),
    "of other arguments": lambda store, call: forged(store, call, content="0" * 64),
}


@pytest.mark.parametrize("how", FORGERIES)
def test_a_yes_counts_with_a_valid_signature_alone(
    tmp_path: Path, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = guarded(tmp_path)
    parked(store)
    (asked,) = pending(store, RUN)
    FORGERIES[how](store, asked)
    (told,) = status(store, RUN).unread
    assert told.refused and not told.wanted
    parked(store)
    assert paid == [] and "does not count" in caplog.text
    approve(store, RUN, asked, who="ann", why="as agreed", sign=ANN.sign)
    parked(store)
    assert paid == [900]
    (decided,) = recorded(store, CallDecided)
    assert len(decided.signature) == 64


@pytest.mark.parametrize(
    ("content", "refused"),
    [
        (content_of(pack([[1], {}], "")), "it was signed for other arguments"),
        ("", "it was signed without the arguments of the call"),
    ],
)
def test_a_signed_yes_for_other_arguments_pays_nothing(
    tmp_path: Path, content: str, refused: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Signed in good faith, of what a forged record showed."""
    store = guarded(tmp_path)
    parked(store)
    (asked,) = pending(store, RUN)
    said = Statement(
        status(store, RUN).uid,
        "decision",
        asked.idempotency_key,
        "approved",
        "ann",
        "as agreed",
        time.time_ns(),
        content,
    )
    body = SAID | {"uid": said.uid, "of": said.about, "content": content}
    body["signature"] = ANN.sign(said.to_bytes())
    store.backend.post(RUN, "decision", body, "", said.time_ns)
    assert status(store, RUN).unread[0].refused == refused
    parked(store)
    assert paid == [] and refused in caplog.text


def test_a_signed_yes_that_is_sent_again_after_a_no_is_no_new_yes(tmp_path: Path) -> None:
    store = guarded(tmp_path)
    parked(store)
    (asked,) = pending(store, RUN)
    approve(store, RUN, asked, who="ann", sign=ANN.sign)
    inbox = tmp_path / RUN / "inbox"
    shutil.copytree(inbox, tmp_path / "kept")
    deny(store, RUN, asked, who="bob", why="no", sign=BOB.sign)
    with EventLog.open(tmp_path / "kept") as kept:
        (yes,) = kept.records()
    store.backend.post(RUN, "decision", yes.body, "again", yes.time_ns)
    with pytest.raises(RunFailedError, match="denied by bob"):
        go(store)
    assert paid == []


def test_a_clock_that_is_behind_takes_no_weight_from_a_no(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = guarded(tmp_path)
    parked(store)
    (asked,) = pending(store, RUN)
    approve(store, RUN, asked, who="ann", sign=ANN.sign)
    now = time.time_ns()
    with monkeypatch.context() as behind:
        behind.setattr(time, "time_ns", lambda: now - 3600 * 10**9)
        deny(store, RUN, asked, who="bob", sign=BOB.sign)
    with pytest.raises(RunFailedError, match="denied by bob"):
        go(store)


def test_who_sends_is_told_what_would_not_count(tmp_path: Path) -> None:
    store = guarded(tmp_path)
    parked(store)
    (asked,) = pending(store, RUN)
    with pytest.raises(RecoveryError, match=r"only when it is signed.*--sign KEYFILE"):
        approve(CheckpointStore(tmp_path), RUN, asked, who="ann")  # which knows of no approvers
    with pytest.raises(RecoveryError, match="no such signature of 'ann'"):
        approve(store, RUN, asked, who="ann", sign=MALLORY.sign)
    assert status(store, RUN).unread == ()
    approve(CheckpointStore(tmp_path), RUN, asked.idempotency_key, who="ann", sign=ANN.sign)
    parked(store)
    assert paid == [900]
    earlier = CheckpointStore(tmp_path / "earlier")
    parked(earlier)
    (asked,) = pending(earlier, RUN)
    with pytest.raises(RecoveryError, match="only when it is signed"):
        approve(guarded(tmp_path / "earlier"), RUN, asked, who="ann")


@pytest.mark.parametrize("also", [(), ("signal", "cancel")])
def test_what_else_has_to_be_signed_is_for_the_store_to_say(tmp_path: Path, also: Any) -> None:
    store = CheckpointStore(tmp_path, approvers=Approvers(PEOPLE, also))
    parked(store)
    approve(store, RUN, pending(store, RUN)[0], who="ann", sign=ANN.sign)
    parked(store)
    body = {"name": "go", "value": "unsigned", "who": "ann", "uid": status(store, RUN).uid}
    store.backend.post(RUN, "signal", body)
    if also:
        signal(store, RUN, "go", "signed", who="ann", key="k", sign=ANN.sign)
        signal(store, RUN, "go", "signed", who="ann", key="k", sign=ANN.sign)  # again: sent once
        sent_again(store, value="swapped", key="another")
    parked(store)
    refused = [one.refused for one in status(store, RUN).unread]
    assert [bool(one) for one in refused] == [True, True] * bool(also)
    store.backend.post(RUN, "cancel", {"who": "ann", "why": "", "uid": status(store, RUN).uid})
    if also:
        parked(store)
    else:
        with pytest.raises(RunCancelledError):
            go(store)


# -- who may say what became of a call


charged: list[int] = []


@tool
def charge(cents: int) -> str:
    charged.append(cents)
    if len(charged) == 1:
        raise Died
    return f"charged {cents}"


async def charging(run: Any) -> Any:
    return await run.call(charge, 7)


def resolving(root: Path) -> CheckpointStore:
    """A store with a call in doubt, about which somebody who signs has to say what became of it."""
    store = CheckpointStore(root, approvers=Approvers(PEOPLE, ("resolve",)))
    charged.clear()
    with pytest.raises(Died):
        go(store, agent=charging)
    return store


def last_lsn(root: Path) -> int:
    with EventLog.read(root / RUN) as log:
        return log.tail().next_lsn - 1


def of_nobody_we_know(root: Path) -> None:
    said = Resolution.retry()
    resolve(CheckpointStore(root), RUN, call_in_doubt(root), said, who="ann", sign=MALLORY.sign)


def of_another(root: Path) -> None:
    resolve(
        CheckpointStore(root),
        RUN,
        call_in_doubt(root),
        Resolution.retry(),
        who="ann",
        sign=BOB.sign,
    )


def of_an_older_library(root: Path) -> None:
    body = {"call": call_in_doubt(root), "how": "retry", "value": None, "who": "ann", "why": ""}
    with EventLog.open(root / RUN) as log:
        log.append("resolved", body)


def call_in_doubt(root: Path) -> int:
    return status(CheckpointStore(root), RUN).calls[0].lsn


def said_of_another_run(root: Path) -> None:
    """By the same person about the same call of another run, in good faith."""
    store = CheckpointStore(root / "other", approvers=Approvers(PEOPLE, ("resolve",)))
    charged.clear()
    with pytest.raises(Died):
        go(store, agent=charging)
    (one,) = status(store, RUN).calls
    resolve(store, RUN, one.idempotency_key, Resolution.retry(), who="ann", sign=ANN.sign)
    with EventLog.read(root / "other" / RUN) as theirs, EventLog.open(root / RUN) as log:
        *_, record = theirs.records()
        log.append(record.kind, record.body, time_ns=record.time_ns)


@pytest.mark.parametrize(
    "forge",
    [of_nobody_we_know, of_another, of_an_older_library, said_of_another_run],
    ids=lambda f: f.__name__,
)
def test_what_is_said_of_a_call_in_doubt_counts_with_a_valid_signature_alone(
    tmp_path: Path, forge: Any, caplog: pytest.LogCaptureFixture
) -> None:
    store = resolving(tmp_path)
    forge(tmp_path)
    charged[:] = [7]
    with pytest.raises(InDoubtError):
        go(store, agent=charging)
    assert charged == [7] and "does not count" in caplog.text
    assert [one.state for one in status(store, RUN).calls] == ["in doubt"]
    (one,) = status(store, RUN).calls
    resolve(store, RUN, one.idempotency_key, Resolution.retry(), who="ann", sign=ANN.sign)
    assert go(store, agent=charging) == "charged 7" and charged == [7, 7]


@pytest.mark.parametrize("again", [True, False])
def test_a_signed_resolution_counts_in_its_place_and_as_it_is(tmp_path: Path, again: bool) -> None:
    """A yes to a retry is no yes to the next one, nor is a no."""
    store = resolving(tmp_path)
    said = Resolution.retry() if again else Resolution.fail("the bank says no")
    resolve(store, RUN, call_in_doubt(tmp_path), said, who="ann", sign=ANN.sign)
    with EventLog.read(tmp_path / RUN) as log:
        *_, signed = log.records()
    if again:
        charged.clear()
        with pytest.raises(Died):  # it is made again, and dies again
            go(store, agent=charging)
    with EventLog.open(tmp_path / RUN) as log:
        how = {} if again else {"how": "retry"}
        log.append(signed.kind, {**signed.body, **how}, time_ns=signed.time_ns)
    with pytest.raises((InDoubtError, RunFailedError)):
        go(store, agent=charging)
    assert charged == [7]


def test_who_resolves_is_told_that_it_has_to_be_signed(tmp_path: Path) -> None:
    store = resolving(tmp_path)
    before = last_lsn(tmp_path)
    (one,) = status(store, RUN).calls
    for known in (store, CheckpointStore(tmp_path)):  # which knows of no approvers
        with pytest.raises(RecoveryError, match=r"a resolve counts .* only when it is signed"):
            resolve(known, RUN, one.idempotency_key, Resolution.retry(), who="ann")
    with pytest.raises(RecoveryError, match="no such signature of 'ann'"):
        resolve(store, RUN, one.lsn, Resolution.retry(), who="ann", sign=MALLORY.sign)
    assert last_lsn(tmp_path) == before
    key_file(tmp_path / "ann.pem", ANN)
    shown = call("recovery", "show", RUN, "--store", ".", "--json", cwd=tmp_path).out
    (line,) = [line for line in json.loads(shown)["next"] if "--retry" in line]
    assert "--sign KEYFILE" in line
    words = shlex.split(line.replace("KEYFILE", "ann.pem"), comments=True)
    at = words.index("--sign")
    assert call(*words[:at], *words[at + 2 :], cwd=tmp_path).code == 1
    done = call(*words, "--who", "ann", cwd=tmp_path)
    assert done.code == 0, done.err
    with pytest.raises(RecoveryError, match=r"approvers= to verify it with. Nothing was executed"):
        go(clear(tmp_path), agent=charging)
    assert charged == [7]
    assert go(store, agent=charging) == "charged 7"


@pytest.mark.parametrize("guard", ["approvers", "key"])
def test_whom_messages_are_meant_for_is_durable_before_the_run_executes_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, guard: str
) -> None:
    """Its uid is random: after a power loss the run would be another one."""
    monkeypatch.setattr("eventlog.write.log.committer.request", lambda log, lsn: None)
    encrypted = CheckpointStore(FileStore(tmp_path, encryption=Encryption(KEY)))
    durable: list[int] = []

    async def looks(run: Run) -> None:
        durable.append(execution_of(run).log.durable_lsn)

    store = guarded(tmp_path) if guard == "approvers" else encrypted
    RecoverableAgent(looks, store).run_with_recovery_sync("task", RUN)
    assert durable == [1]


@pytest.mark.parametrize("where", ["in the run", "in its child", "in its child alone"])
def test_a_failed_call_is_made_again_by_whoever_signs_it(tmp_path: Path, where: str) -> None:
    @tool
    def fails(cents: int) -> str:
        charged.append(cents)
        raise ConnectionError("away")

    async def failing(run: Any) -> Any:
        return await run.call(fails, 7)

    async def parent(run: Any) -> Any:
        return await run.child(failing, "task")

    def failed(agent: Any, run_id: str) -> int:
        with pytest.raises(RunFailedError) as caught:
            go(store, run_id, agent)
        return caught.value.call

    store = CheckpointStore(tmp_path, approvers=Approvers(PEOPLE, ("resolve",)))
    charged.clear()
    agent = failing if where == "in the run" else parent
    failed(agent, RUN)
    runner = RecoverableAgent(agent, store, max_recoveries=0)
    with pytest.raises(RecoveryError, match="only when it is signed"):
        runner.retry_sync(RUN, who="ann")
    assert charged == [7]
    if where == "in its child alone":
        (child,) = children(store, RUN)
        lsn = failed(failing, child.run_id)
        resolve(store, child.run_id, lsn, Resolution.retry(), who="ann", sign=ANN.sign)
        failed(agent, RUN)
    else:
        with pytest.raises(RunFailedError):
            runner.retry_sync(RUN, who="ann", sign=ANN.sign)
    assert charged == [7, 7]


@pytest.mark.parametrize("is_known", [True, False])
def test_what_tools_say_of_their_own_calls_is_not_for_people_to_sign(
    tmp_path: Path, is_known: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Nor has the next process to know who signs."""
    settled: list[str] = []

    @tool
    def fails_once() -> None:
        charged.append(7)
        if len(charged) == 1:
            raise ConnectionError("away")

    @tool(retry=Retry(2, delay_s=0))
    async def again() -> None:
        fails_once()

    def asked(of: Call) -> Resolution:
        settled.append(of.tool)
        return Resolution.outcome("found")

    @tool(reconcile=asked)
    def dies() -> None:
        raise Died

    async def agent(run: Any) -> Any:
        got = await run.call(dies)
        await again()
        if len(settled) == 1 and len(charged) == 2:
            charged.append(1)
            raise Died
        return got

    store = CheckpointStore(tmp_path, approvers=Approvers(PEOPLE, ("resolve",)))
    charged.clear()
    for _ in range(2):
        with pytest.raises(Died):
            go(store, agent=agent)
    store = store if is_known else CheckpointStore(tmp_path)
    assert go(store, agent=agent) == "found" and settled == ["dies"] and charged == [7, 7, 1]
    assert "does not count" not in caplog.text


@pytest.mark.parametrize("kind", ["signal", "cancel"])
def test_what_has_to_be_signed_is_refused_and_does_not_count_where_nobody_knows_it(
    tmp_path: Path, kind: str
) -> None:
    store = CheckpointStore(tmp_path, approvers=Approvers(PEOPLE, ("signal", "cancel")))
    parked(store)
    send: Any = cancel if kind == "cancel" else signal
    for known in (store, CheckpointStore(tmp_path)):
        with pytest.raises(RecoveryError, match=f"a {kind} counts .* only when it is signed"):
            send(known, RUN, *["go"] * (kind == "signal"), who="ann")
    assert status(store, RUN).unread == () and status(store, RUN).state == "waiting"
    body: dict[str, Any] = {"who": "ann", "why": "", "uid": status(store, RUN).uid}
    body |= {"name": "go", "value": 1} if kind == "signal" else {}
    store.backend.post(RUN, kind, body)
    assert status(store, RUN).unread[0].refused == "it is not signed, and approvers= asks for that"
    with store.backend.claim(RUN):
        send(store, RUN, *["go"] * (kind == "signal"), who="ann", sign=ANN.sign)
    refused = [one.refused for one in status(CheckpointStore(tmp_path), RUN).unread]
    assert all(refused) and "no approvers= to verify it with" in refused[1]


def always(signature: bytes) -> Callable[[bytes], bytes]:
    return lambda data: signature


def test_a_function_may_say_whose_signature_counts(tmp_path: Path) -> None:
    seen: list[Statement] = []

    def known(statement: Statement, signature: bytes) -> bool:
        seen.append(statement)
        if signature == b"trouble":
            raise OSError("the key service is away")
        return signature == b"ok" and statement.who == "ann"

    store = CheckpointStore(tmp_path, approvers=known)
    parked(store)
    (asked,) = pending(store, RUN)
    for who, signature in (("eve", b"ok"), ("ann", b"no"), ("ann", b"trouble")):
        approve(CheckpointStore(tmp_path), RUN, asked, who=who, sign=always(signature))
    parked(store)
    assert paid == []
    approve(store, RUN, asked, who="ann", sign=always(b"ok"))
    parked(store)
    assert paid == [900] and {one.about for one in seen} == {asked.idempotency_key}


def test_the_children_of_a_run_ask_the_same_people(tmp_path: Path) -> None:
    async def parent(run: Any) -> Any:
        return await run.child(refund, "task", park_after_s=0)

    async def careless(run: Any) -> Any:
        return await run.child(RecoverableAgent(refund, CheckpointStore(tmp_path)), "task")

    with pytest.raises(ValueError, match="has other approvers="):
        go(guarded(tmp_path), "other", careless)
    with pytest.raises(ChildParkedError):
        go(guarded(tmp_path), RUN, parent)
    (child,) = children(tmp_path, RUN)
    (asked,) = pending(tmp_path, child.run_id)
    with pytest.raises(RecoveryError, match="only when it is signed"):
        approve(tmp_path, child.run_id, asked)


@pytest.mark.parametrize(
    "key", ["ssh-ed25519 AAAA", "", b"short", pem(ANN).replace("MC", "MD"), 7, None]
)
def test_what_is_no_key_is_said_at_once(key: Any) -> None:
    with pytest.raises(ValueError, match="the key of 'ann' is no public Ed25519 key"):
        CheckpointStore(approvers={"ann": key})


def test_keys_come_in_files_as_people_have_them(tmp_path: Path) -> None:
    for i, (form, shape) in enumerate(
        [(Encoding.PEM, PrivateFormat.PKCS8), (Encoding.PEM, PrivateFormat.OpenSSH)]
    ):
        path = tmp_path / str(i)
        path.write_bytes(ANN.private_bytes(form, shape, NoEncryption()))
        path.chmod(0o644)
        with pytest.raises(ValueError, match="every user can read or change it"):
            signing_key(path)
        path.chmod(0o640)
        said = Statement("u", "cancel", "", "", "ann", "", 1, "")
        signature = signing_key(path)(said.to_bytes())
        forms: list[str | bytes] = [public(ANN), ssh(ANN), pem(ANN)]
        for known in forms:
            assert Approvers({"ann": known}).accepts(said, signature)
        assert not Approvers({"ann": public(BOB)}).accepts(said, signature)
    path.write_text("nothing of the kind")
    with pytest.raises(ValueError, match="no private key"):
        signing_key(path)


def test_a_process_that_knows_no_approvers_begins_no_call_that_asks_for_them(
    tmp_path: Path,
) -> None:
    store = guarded(tmp_path)
    parked(store)
    by_the_shell(store, pending(store, RUN)[0])
    with pytest.raises(RecoveryError, match=r"approvers= to verify it with. Nothing was executed"):
        go(clear(tmp_path))
    assert paid == []
    approve(store, RUN, pending(store, RUN)[0], who="ann", sign=ANN.sign)
    parked(store)
    assert paid == [900]
    # A call that is new there takes no signature that nobody can verify.
    signal(store, RUN, "go")
    parked(clear(tmp_path))
    body = SAID | {"uid": status(store, RUN).uid, "of": pending(store, RUN)[0].idempotency_key}
    store.backend.post(RUN, "decision", body | {"signature": b"x" * 64})
    parked(clear(tmp_path))
    assert paid == [900]


# -- what is shown is what is paid

LONG = "x" * 5000 + " and then 999,999 to mallory"


@tool(needs_approval=True)
def order(what: str, cents: int) -> str:
    paid.append(cents)
    return what


async def orders(run: Any) -> Any:
    return await run.call(order, LONG, 999_999)


def shown_whole(text: str) -> bool:
    return LONG.replace(" ", "") in "".join(text.split()) and "999999" in text


def test_an_approval_is_shown_whole_and_asked_for(tmp_path: Path) -> None:
    store = clear(tmp_path)
    parked(store, RUN, orders)
    (asked,) = pending(store, RUN)
    shown = call("recovery", "show", RUN, "--store", ".", cwd=tmp_path)
    words = f"recovery approve {RUN} {asked.idempotency_key[:16]} --store ."
    assert shown_whole(shown.out) and words in shown.out
    without = call(*words.split(), cwd=tmp_path)  # in a pipe, with nobody to ask
    assert without.code == 64 and "say --yes" in without.err and shown_whole(without.out)
    with Processes(tmp_path) as processes:
        done = processes.on_terminal(*words.split(), keys=b"n\n")
        assert done.code == 1 and shown_whole(done.shown) and "Approve exactly this" in done.shown
        assert status(store, RUN).unread == ()
        assert processes.on_terminal(*words.split(), keys=b"y\n").code == 0
    assert go(store, RUN, orders) == LONG and paid == [999_999]


def test_a_printed_command_never_means_the_call_of_another_run(tmp_path: Path) -> None:
    """Between showing and typing the run is begun anew, with another call of the same LSN."""
    store = clear(tmp_path)
    parked(store)
    (asked,) = pending(store, RUN)
    shown = call("recovery", "show", RUN, "--store", ".", "--json", cwd=tmp_path).out
    commands = [line for line in json.loads(shown)["next"] if "approve" in line or "deny" in line]
    assert len(commands) == 2 and all(asked.idempotency_key[:16] in line for line in commands)
    shutil.rmtree(tmp_path / RUN)
    parked(store, RUN, orders)
    assert pending(store, RUN)[0].lsn == asked.lsn
    for line in commands:
        done = call(
            *shlex.split(line, comments=True), *["--yes"] * ("approve" in line), cwd=tmp_path
        )
        assert done.code == 1 and "no open call is" in done.err
    for call_of_before in (asked, asked.idempotency_key):
        with pytest.raises(RecoveryError, match="does not wait for approval"):
            approve(store, RUN, call_of_before)
    assert status(store, RUN).unread == ()


def in_doubt(tmp_path: Path, failing: bool) -> CheckpointStore:
    @tool
    def charge(cents: int) -> None:
        raise ConnectionError("away") if failing else Died

    async def charging(run: Any) -> Any:
        return await run.call(charge, 7)

    store = clear(tmp_path)
    with pytest.raises((Died, RunFailedError)):
        go(store, RUN, charging)
    return store


@pytest.mark.parametrize("failing", [False, True])
def test_what_resolves_a_call_names_it_by_its_key(tmp_path: Path, failing: bool) -> None:
    store = in_doubt(tmp_path, failing)
    found = status(store, RUN)
    key = found.failed_call_key if failing else found.calls[0].idempotency_key
    shown = call("recovery", "show", RUN, "--store", ".", "--json", cwd=tmp_path).out
    (line,) = [line for line in json.loads(shown)["next"] if "--fail" in line]
    assert f"recovery resolve {RUN} {key[:16]} " in line
    done = call(*shlex.split(line.replace("TEXT", "no"), comments=True), cwd=tmp_path)
    assert done.code == 0, done.err
    shutil.rmtree(tmp_path / RUN)
    in_doubt(tmp_path, failing)
    done = call(*shlex.split(line.replace("TEXT", "no"), comments=True), cwd=tmp_path)
    assert done.code == 1 and "no open call is" in done.err
    with pytest.raises(RecoveryError, match="is no open call of this run"):
        resolve(store, RUN, key, Resolution.fail("no"))


def test_a_yes_is_signed_on_the_command_line(tmp_path: Path) -> None:
    store = guarded(tmp_path)
    parked(store)
    (asked,) = pending(store, RUN)
    for name, key in (("ann", ANN), ("eve", MALLORY)):
        key_file(tmp_path / name, key)
    shown = call("recovery", "show", RUN, "--store", ".", "--json", cwd=tmp_path).out
    (line,) = [line for line in json.loads(shown)["next"] if "approve" in line]
    assert line == f"recovery approve {RUN} {asked.idempotency_key[:16]} --sign KEYFILE --store ."
    unsigned = call(
        *shlex.split(line.replace("--sign KEYFILE", "--yes"), comments=True), cwd=tmp_path
    )
    assert unsigned.code == 1 and "--sign KEYFILE" in unsigned.err
    for name in ("eve", "ann"):  # the command line does not know whom the store knows
        words = shlex.split(line.replace("KEYFILE", name), comments=True)
        done = call(*words, "--yes", "--who", "ann", cwd=tmp_path)
        assert done.code == 0, done.err
        parked(store)
    assert paid == [900]


def test_the_password_of_a_private_key_is_asked_for_and_not_shown(tmp_path: Path) -> None:
    store = guarded(tmp_path)
    parked(store)
    (asked,) = pending(store, RUN)
    form = Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"open sesame")
    (tmp_path / "ann").write_bytes(ANN.private_bytes(*form))
    (tmp_path / "ann").chmod(0o600)
    words = ["approve", RUN, asked.idempotency_key, "--store", ".", "--yes", "--who", "ann"]
    with Processes(tmp_path) as processes:
        for typed in (b"sesame", b"open sesame"):
            assert status(store, RUN).unread == ()
            done = processes.on_terminal("recovery", *words, "--sign", "ann", keys=typed + b"\n")
            assert "Password of ann: " in done.shown and "sesame" not in done.shown
            right = typed == b"open sesame"
            assert done.code == (0 if right else 64) and ("another password" in done.shown) != right
    parked(store)
    assert paid == [900]


# As `ssh-keygen -t ed25519` makes it, with the password "open sesame".
LOCKED = """\
-----BEGIN OPENSSH PRIVATE KEY-----
b3BlbnNzaC1rZXktdjEAAAAACmFlczI1Ni1jdHIAAAAGYmNyeXB0AAAAGAAAABCeSpSGs6
hlAH2iH5PY1KJYAAAAEAAAAAEAAAAzAAAAC3NzaC1lZDI1NTE5AAAAIA9KQOvQzEuco0tN
QlYZ4736jJ7/Myi/zGMKCZRUaUZNAAAAkC5wZg07m5sq6DSPByzH7Bp4tst+rUb4fk5p6c
BAdL7pbK9gIpCUIeDAONerb81V/WZCslqjRU6z6OEy5OCALubffyU38QX9v13ZRdkM8b9j
zMWWILH5EQ8xTgWKR6ZK7g/rICFQzzVoj1Zdglo2v/2f6n/2vCTc7+4fd+p7WWPMtgCviI
MKvirmDl6RI9G3RA==
-----END OPENSSH PRIVATE KEY-----
"""


@pytest.mark.parametrize("there", [True, False])
def test_an_openssh_key_with_a_password_works_or_says_what_it_needs(
    tmp_path: Path, there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "id_ed25519"
    path.write_text(LOCKED)
    path.chmod(0o600)
    if there:
        pytest.importorskip("bcrypt")
        with pytest.raises(ValueError, match="another password"):
            signing_key(path, b"sesame")
        assert len(signing_key(path, b"open sesame")(b"said")) == 64
    else:

        def without(*_: object) -> Any:
            raise UnsupportedAlgorithm("Need bcrypt module")

        monkeypatch.setattr("cryptography.hazmat.primitives.serialization.ssh._bcrypt_kdf", without)
        with pytest.raises(ImportError, match="pip install bcrypt"):
            signing_key(path, b"open sesame")


# -- decisions by another user of the machine

AGENT, STRANGER = 12345, 23456  # users
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user")


def act(root: Path, what: str) -> str:
    """What is said where somebody does something in a store."""
    store = clear(root)
    try:
        if what == "run":
            return str(go(store))
        if what == "signal":
            signal(store, RUN, "go", "theirs")
        elif what == "resolve":
            resolve(store, RUN, pending(store, RUN)[0], Resolution.fail("theirs"))
    except (LogError, OSError, RecoveryError, RunFailedError) as exc:
        return f"{type(exc).__name__} {exc}"
    return ""


def as_user(root: Path, uid: int, what: str) -> str:
    """The same in a process of this user."""
    with tempfile.TemporaryDirectory() as folder:  # all is imported while it may be read
        for one in ("run", "signal", "resolve", "run"):
            act(Path(folder), one)
    reads, writes = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.environ["HOME"] = str(root)
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)
            os.write(writes, act(root, what).encode())
        except BaseException:
            os.write(writes, traceback.format_exc().encode())
        finally:
            os._exit(0)
    os.close(writes)
    with os.fdopen(reads, encoding="utf-8") as file:
        said = file.read()
    os.waitpid(pid, 0)
    assert "Traceback" not in said, said
    return said


@pytest.fixture
def theirs() -> Iterator[Path]:
    """A store of the user AGENT, where others get to."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        Path(folder).chmod(0o755)
        root = Path(folder) / "store"
        root.mkdir()
        os.chown(root, AGENT, AGENT)
        assert "WaitingError" in as_user(root, AGENT, "run")
        yield root


def owners(root: Path) -> set[int]:
    return {path.stat().st_uid for path in (root / RUN).rglob("*")}


@as_root
def test_what_root_decides_locks_nobody_out(theirs: Path) -> None:
    store = clear(theirs)
    approve(store, RUN, pending(store, RUN)[0], who="root")
    signal(store, RUN, "go", "root's")
    assert owners(theirs) == {AGENT}
    assert "approval" in as_user(theirs, AGENT, "run")  # of the second payment
    assert "LogError" not in as_user(theirs, AGENT, "signal")
    resolve(store, RUN, pending(store, RUN)[0], Resolution.fail("root says so"))
    assert owners(theirs) == {AGENT}
    assert "root says so" in as_user(theirs, AGENT, "run")


@as_root
@pytest.mark.parametrize(
    ("mode", "what", "says"),
    [
        (0o700, "signal", "Permission denied"),
        (0o700, "resolve", "Permission denied"),
        (0o777, "signal", f"belongs to user {AGENT}"),  # the inbox would be the stranger's
        (0o777, "resolve", ""),  # which makes no file
    ],
)
def test_what_another_user_decides_locks_nobody_out(
    theirs: Path, mode: int, what: str, says: str
) -> None:
    if mode == 0o777:
        for path in theirs.rglob("*"):
            path.chmod(0o777 if path.is_dir() else 0o666)
    said = as_user(theirs, STRANGER, what)
    assert said == "" if not says else says in said
    assert owners(theirs) == {AGENT}
    (theirs / RUN).chmod(0o700)
    assert as_user(theirs, AGENT, "signal") == ""
    said = as_user(theirs, AGENT, "run")
    assert "theirs" in said if not says else "WaitingError" in said
