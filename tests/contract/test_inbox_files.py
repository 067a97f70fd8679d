"""A run and its inbox whose files are gone or exchanged: reported, and nothing is swallowed."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from eventlog import EventLog, LogError
from eventlog.errors import UnsupportedFormatError
from recovery import CheckpointStore, RecoverableAgent, RecoveryError, tool
from recovery.control.cancel import cancel
from recovery.control.resolve import accept
from recovery.control.send import approve, deny, pending, signal
from recovery.errors import WaitingError
from recovery.inspect.status import status
from tests.cli.harness import call

RUN, SEGMENT = "run", "00000001.seg"
sent: list[str] = []


@tool
def send(what: str) -> str:
    sent.append(what)
    return what


async def agent(run: Any) -> list[Any]:
    await run.call(send, "hello")
    return [await run.wait_for("a"), await run.wait_for("a")]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two runs of the agent, which have had one signal, and wait for the second."""
    sent.clear()
    for name in (RUN, "other"):
        signalled(tmp_path, name)
    return tmp_path


def signalled(root: Path, name: str) -> None:
    with pytest.raises(WaitingError):
        go(root, name)
    signal(store_of(root), name, "a", 1)
    with pytest.raises(WaitingError):
        go(root, name)


def store_of(root: Path) -> CheckpointStore:
    return CheckpointStore(root)


def go(root: Path, name: str = RUN, agent: Callable[[Any], Any] = agent) -> Any:
    runner = RecoverableAgent(agent, store_of(root), park_after_s=0, max_recoveries=0)
    return asyncio.run(runner.run_with_recovery("task", name))["result"]


def removed(root: Path) -> None:
    shutil.rmtree(root / RUN / "inbox")


def new_and_longer(root: Path) -> None:
    removed(root)
    for value in (7, 8, 9):
        signal(store_of(root), RUN, "b", value)


def of_another_run(root: Path) -> None:
    removed(root)
    shutil.copytree(root / "other" / "inbox", root / RUN / "inbox")


@pytest.mark.parametrize("lose", [removed, new_and_longer, of_another_run])
def test_a_lost_inbox_is_reported_and_swallows_no_later_signal(root: Path, lose: Any) -> None:
    lose(root)
    before = [*sent]
    said = "its inbox is " + ("gone" if lose is removed else "another one")
    assert said in status(store_of(root), RUN).inbox_damage
    with pytest.raises(RecoveryError, match=f"{said}.*recovery accept run"):
        go(root)
    signal(store_of(root), RUN, "a", 2)  # durable, so it is not to be lost
    with pytest.raises(RecoveryError, match="its inbox is another one"):
        go(root)
    accept(store_of(root), RUN, who="ann", why="it was on the other disk")
    assert status(store_of(root), RUN).inbox_damage == ""
    assert go(root) == [1, 2]
    assert sent == before


@pytest.mark.parametrize("made_anew", [False, True])
def test_a_decision_after_a_lost_inbox_counts(tmp_path: Path, made_anew: bool) -> None:
    @tool(needs_approval=True)
    def pay(amount: int) -> int:
        return amount

    async def paying(run: Any) -> list[Any]:
        got: list[Any] = []
        for amount in (1, 2):
            try:
                got.append(await run.call(pay, amount))
            except Exception:
                got.append("denied")
        return got

    store = store_of(tmp_path)
    with pytest.raises(WaitingError):
        go(tmp_path, agent=paying)
    deny(store, RUN, pending(store, RUN)[0])
    with pytest.raises(WaitingError):
        go(tmp_path, agent=paying)
    shutil.rmtree(tmp_path / RUN / "inbox")
    if made_anew:
        approve(store, RUN, pending(store, RUN)[0])
    with pytest.raises(RecoveryError, match="its inbox is"):
        go(tmp_path, agent=paying)
    accept(store, RUN)
    if not made_anew:
        approve(store, RUN, pending(store, RUN)[0])
    assert go(tmp_path, agent=paying) == ["denied", 2]


def test_an_accepted_inbox_is_no_accepted_divergence(root: Path) -> None:
    async def changed(run: Any) -> Any:
        await run.call(send, "something else")

    removed(root)
    accept(store_of(root), RUN)
    with pytest.raises(RecoveryError, match=r"diverge|did something else|recorded"):
        go(root, agent=changed)
    assert "something else" not in sent


def copied(what: str, to: str, *, mark: bool) -> Callable[[Path], None]:
    """Files of one log in the place of those of another, with its MARK or without any."""

    def exchange(root: Path) -> None:
        shutil.copy(root / what / SEGMENT, root / to / SEGMENT)
        if mark:
            shutil.copy(root / what / "MARK", root / to / "MARK")
        else:
            (root / to / "MARK").unlink()

    return exchange


@pytest.mark.parametrize("mark", [False, True])
@pytest.mark.parametrize(
    ("what", "to"),
    [(f"{RUN}/inbox", RUN), (RUN, f"{RUN}/inbox"), ("other", RUN), ("other/inbox", f"{RUN}/inbox")],
)
def test_exchanged_files_are_an_error_and_nothing_is_executed(
    root: Path, what: str, to: str, mark: bool
) -> None:
    copied(what, to, mark=mark)(root)
    before = [*sent]
    with pytest.raises(RecoveryError):
        go(root)
    assert sent == before


def test_the_log_of_a_run_in_its_inbox_is_no_messages(tmp_path: Path) -> None:
    async def asks(run: Any) -> Any:
        return await run.wait_for("a")

    with pytest.raises(WaitingError):
        go(tmp_path, agent=asks)
    (tmp_path / RUN / "inbox").mkdir()  # it has heard nothing, so it knows of none
    shutil.copy(tmp_path / RUN / SEGMENT, tmp_path / RUN / "inbox" / SEGMENT)
    with pytest.raises(RecoveryError, match="is no message, but 'run_started': files of another"):
        go(tmp_path, agent=asks)


def test_messages_alone_begin_no_run(tmp_path: Path) -> None:
    """An inbox in the place of the log, with nothing in it that a log could have."""
    with pytest.raises(WaitingError):
        go(tmp_path)
    sent.clear()
    store_of(tmp_path).backend.post(
        RUN, "decision", {"of": "", "approved": True, "who": "", "why": ""}
    )
    copied(f"{RUN}/inbox", RUN, mark=True)(tmp_path)
    with pytest.raises(
        RecoveryError, match="begins with a message, and nothing says how the run began"
    ):
        go(tmp_path)
    assert sent == []


@pytest.mark.parametrize("names", [(SEGMENT, "MARK"), (SEGMENT, "MARK", "LOCK")])
def test_a_run_of_which_only_the_inbox_is_left_is_not_begun_anew(
    root: Path, names: tuple[str, ...]
) -> None:
    for name in names:
        (root / RUN / name).unlink()
    before = [*sent]
    with pytest.raises(
        (RecoveryError, UnsupportedFormatError),
        match=r"its inbox knows of .* records in its log|holds other things \('inbox'",
    ):
        go(root)
    assert sent == before


def test_a_log_with_fewer_records_than_a_message_knows_of_is_refused(root: Path) -> None:
    signal(store_of(root), RUN, "b", 0)  # knows how far the run is
    early = root / "early"
    early.mkdir()
    for name in (SEGMENT, "MARK"):
        (root / RUN / name).unlink()
    with pytest.raises(WaitingError):  # a run of the same name, with fewer records
        go(early)
    for name in (SEGMENT, "MARK"):
        shutil.copy(early / RUN / name, root / RUN / name)
    before = [*sent]
    with pytest.raises(RecoveryError, match=r"its inbox knows of .* records in its log, which has"):
        go(root)
    assert sent == before


@pytest.mark.parametrize("send", [signal, cancel])
def test_a_run_that_has_not_begun_is_sent_nothing(tmp_path: Path, send: Any) -> None:
    """A message names its run, which has no name of its own before it begins."""
    store_of(tmp_path).claim(RUN).close()
    with pytest.raises(RecoveryError, match="does not say how the run began"):
        send(store_of(tmp_path), RUN, *["a"] * (send is signal))
    with pytest.raises(WaitingError):
        go(tmp_path)


def test_a_run_that_was_told_to_end_in_a_lost_inbox(root: Path) -> None:
    """The end of a run is a record of it, where nobody has the run: so it is not lost."""
    cancel(store_of(root), RUN)
    removed(root)
    with pytest.raises(RecoveryError, match="cancelled"):
        go(root)


WAYS: dict[str, Callable[[Path], object]] = {
    "signal": lambda root: signal(store_of(root), RUN, "a", 2),
    "cancel": lambda root: cancel(store_of(root), RUN),
    "status": lambda root: status(store_of(root), RUN),
    "run": go,
    "export": lambda root: call_export(root / RUN),
}


def call_export(path: Path) -> None:
    done = call("logdump", "export", str(path), cwd=path.parent)
    assert done.code and "dear" not in done.out
    raise LogError(done.err)


def tree(place: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in place.rglob("*") if path.is_file()}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("linked", ["the inbox", "the run"])
def test_a_link_in_a_store_leads_nowhere(way: str, linked: str, root: Path) -> None:
    """Whoever can write to the store cannot have another log read, written, cut or delivered."""
    outside = root / "outside"
    with EventLog.open(outside / "log") as log:
        log.append("signal", {"name": "a", "value": "dear", "key": "k"})
    if linked == "the inbox":
        removed(root)
        (root / RUN / "inbox").symlink_to(outside / "log")
    else:
        shutil.rmtree(root / RUN)
        (root / RUN).symlink_to(outside / "log")
    before = tree(outside)
    if way == "export" and linked == "the run":
        return  # the path of the log itself is the user's
    found = None
    with suppress(LogError, RecoveryError):
        found = WAYS[way](root)
    assert tree(outside) == before
    assert found is None or (way == "status" and "dear" not in repr(found))


def test_a_linked_run_does_not_hide_the_others(root: Path) -> None:
    shutil.rmtree(root / RUN / "inbox")
    (root / RUN / "inbox").symlink_to(root / "other" / "inbox")
    done = call("recovery", "runs", "--store", str(root), cwd=root)
    assert "other" in done.out and RUN in done.out
