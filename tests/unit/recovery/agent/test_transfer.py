"""A run that was exported and imported goes on exactly as it would have where it was."""

from __future__ import annotations

import io
from collections import Counter
from typing import Any

import pytest

from eventlog import EventLog
from eventlog.testing import Crash, SimulatedDisk
from eventlog.transfer import export, import_
from recovery import CheckpointStore, InDoubtError
from recovery.control.send import signal
from recovery.errors import WaitingError
from recovery.stores.protocol import INBOX
from tests.support.lives import RUN, Disk, disk_store, executed, run_sync, send

pytestmark = pytest.mark.usefixtures("fresh")


def agent(run: Any) -> Any:
    for step in run.steps():
        run.messages.append(run.call(send, f"mail {step}"))
        if step == 1:
            run.state["word"] = run.wait_for("word")
        run.messages.append(run.call(send, f"more {step}"))
        run.state["at"] = run.now()
        if step == 3:
            return [run.state["word"], len(run.messages)]


def waiting() -> SimulatedDisk:
    """A run that waits for a signal, which is in its inbox by now."""
    store = disk_store()
    with pytest.raises(WaitingError):
        run_sync(agent, store, park_after_s=0, checkpoint_every_n=1)
    signal(store, RUN, "word", "hello")
    assert isinstance(store.backend, Disk)
    return store.backend.disk


def moved(disk: SimulatedDisk) -> SimulatedDisk:
    """The run elsewhere: all that is known of it there is its export."""
    path = f"home/{RUN}"
    with (
        EventLog.read(path, files=disk) as log,
        EventLog.read(f"{path}/{INBOX}", files=disk) as inbox,
    ):
        lines = "\n".join(export(log, [(INBOX, inbox)])) + "\n"
    there = SimulatedDisk(seed=7)
    import_(io.BytesIO(lines.encode()), path, files=there)
    return there


def end_of(disk: SimulatedDisk, done: Counter[Any]) -> tuple[Any, Counter[Any]]:
    """How the run ends on that disk, and what was done in all, with what had been done before."""
    executed.clear()
    executed.update(done)
    store = disk_store(disk)
    try:
        end: Any = run_sync(agent, store, checkpoint_every_n=1)
        end = {name: value for name, value in end.items() if name != "report"}
    except InDoubtError as exc:
        end = str(exc)
    return end, Counter(executed)


def test_a_run_that_crashed_anywhere_goes_on_elsewhere_as_it_would_have_here(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The process dies where it is at work, and no thread of its own does.
    monkeypatch.setattr(EventLog, "commit_behind", EventLog.commit)
    before, ends = waiting(), []
    done = Counter(executed)
    for call in range(1000):
        executed.clear()
        executed.update(done)
        disk = before.after_process_death()
        disk.crash_at(call)
        try:
            run_sync(agent, CheckpointStore(Disk(disk)), checkpoint_every_n=1, max_recoveries=0)
        except Crash:
            pass
        else:
            break
        then = Counter(executed)
        here = end_of(disk.after_process_death(), then)
        there = end_of(moved(disk.after_process_death()), then)
        assert here == there
        assert max(there[1].values()) == 1, "an effect was made twice"
        ends.append(there[0])
    parked = [end for end in ends if isinstance(end, str)]
    assert len(ends) > 20 and 0 < len(parked) < len(ends)
    results = [end["result"] for end in ends if isinstance(end, dict)]
    assert results == [["hello", 6]] * len(results)


def test_without_its_inbox_the_run_would_wait_for_ever() -> None:
    """What makes the inbox a part of the export: the run was told, and would not know."""
    disk = waiting()
    there = moved(disk)
    end, done = end_of(there, Counter(executed))
    assert end["result"] == ["hello", 6] and sum(done.values()) == 6
    bare = moved(disk)
    bare.delete(f"home/{RUN}/{INBOX}")
    executed.clear()
    with pytest.raises(WaitingError):
        run_sync(agent, disk_store(bare), park_after_s=0)
