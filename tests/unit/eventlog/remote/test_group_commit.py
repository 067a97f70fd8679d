"""The thread that commits logs on a server: what ends it, and what takes its place."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from eventlog.errors import UnreachableError
from eventlog.remote.appender import RemoteAppender
from eventlog.remote.directory import RemoteDirectory
from eventlog.remote.group_commit import RemoteCommitter
from eventlog.remote.log_server import Batch, Head, Loaded, LostConnectionError, Owner


class Server:
    """Accepts what it is sent, after what each of ``first`` says."""

    address = "postgresql://here"

    def __init__(self, *first: Exception) -> None:
        self.left = list(first)

    def append(self, batches: Sequence[Batch], lease_s: float) -> set[int]:
        if self.left:
            raise self.left.pop(0)
        return {one.key for one in batches}

    def resolve(self, batches: Sequence[Batch]) -> dict[int, tuple[int, bool]]:
        return {one.key: (one.expected, False) for one in batches}


def committing(
    *first: Exception, patience_s: float = 30.0
) -> tuple[RemoteCommitter, Callable[[int], Any]]:
    """A committer, and what makes logs with a record each."""
    server: Any = Server(*first)
    committer = RemoteCommitter(server, 30.0, patience_s)

    def log(key: int) -> Any:
        owner = Owner(1, "here", "", "t")
        ends = (1, 1, 0, 1, 0, 0, 0, 0)
        head = Head(key, f"run{key}", bytes(16), 1, owner, 0, True, True, (), *ends)
        directory = RemoteDirectory(server, Loaded(head, []))
        appender = RemoteAppender(committer, directory, head, None, os.urandom)
        appender.append(1, 1, b"x" * 16)
        return SimpleNamespace(appender=appender)

    return committer, log


class Answer:
    """What a caller is told of its commit."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self._told = threading.Event()

    def __call__(self, log: Any, error: Exception | None) -> None:
        self.error = error
        self._told.set()

    def wait(self) -> Exception | None:
        assert self._told.wait(30)
        return self.error


REFUSED = ValueError("cannot execute UPDATE in a read-only transaction")


def test_a_standby_that_answers_for_a_lost_primary_is_asked_until_it_is_promoted() -> None:
    committer, log = committing(LostConnectionError("the primary died"), REFUSED)
    answer = Answer()
    committer.commit([log(1)], answer)
    assert answer.wait() is None


def test_a_standby_that_is_not_promoted_is_an_error_of_the_commit() -> None:
    refusals = [REFUSED] * 1000
    committer, log = committing(LostConnectionError("the primary died"), *refusals, patience_s=0.1)
    answer = Answer()
    committer.commit([log(1)], answer)
    assert isinstance(answer.wait(), UnreachableError)


def test_without_a_thread_of_its_own_the_committer_sends_in_that_of_the_caller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    committer, log = committing()
    with monkeypatch.context() as patched:
        refused = SimpleNamespace(Thread=refuse, current_thread=threading.current_thread)
        patched.setattr("eventlog.remote.group_commit.threading", refused)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            committer.opened(log(1).appender)
        one, answer = log(2), Answer()
        committer.commit_behind(one.appender)
        committer.commit([one], answer)
        assert answer.wait() is None and one.appender.durable.durable == 1
    answer = Answer()
    committer.commit([log(3)], answer)
    assert answer.wait() is None


def refuse(**options: Any) -> Any:
    raise RuntimeError("can't start new thread")


def test_who_is_interrupted_while_it_tells_others_leaves_the_rest_to_the_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    committer, log = committing()
    interrupts, answer = [KeyboardInterrupt], Answer()

    def first(log: Any, error: Exception | None) -> None:
        if interrupts:
            raise interrupts.pop()

    with monkeypatch.context() as patched:  # its thread must not be faster than the caller
        patched.setattr(committer, "_start", lambda: None)
        committer.commit([log(1)], first)
        committer.commit([log(2)], answer)
        with pytest.raises(KeyboardInterrupt):
            committer.commit_and_wait(log(3).appender, 1)
    committer.commit_behind(log(4).appender)
    assert answer.wait() is None
