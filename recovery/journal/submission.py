"""Encodes the record of a run that is handed in, for a worker to begin it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from recovery.journal.contract_version import CURRENT, Rules
from recovery.journal.events import RunStarted
from recovery.values.pack import pack, pack_map, unpack, unpack_map
from recovery.values.sealed import KeyIds, Subjects, key_ids, plain, sealed_data

if TYPE_CHECKING:
    from eventlog import LogRecords, Packed

SUBMITTED = "submitted"  # the first record of a run's log, before an agent has begun the run


@dataclass(frozen=True, slots=True)
class Submission:
    """A run that a process is asked to begin.

    ``run_id``: of the run. ``task``: as of ``run_with_recovery``. ``agent``: the name of the agent
    that executes it. ``not_before_ns``: no process begins it before then (ns since 1970, by the
    store's clock; 0: now). ``priority``: a higher one goes first. ``limit_key``: workers bound how
    many runs of one key are executed at once ("": no bound). ``subject``: the ids of the keys of
    the subject that the run belongs to, with its task; none if it belongs to no subject.
    ``submitted_ns``: when it was submitted, once it is in the store. ``uid``: what the run will
    have, so that messages can be sent to it before it begins; "" from older libraries.
    """

    run_id: str
    task: Any
    agent: str = ""
    not_before_ns: int = 0
    priority: int = 0
    limit_key: str = ""
    subject: KeyIds = ()
    submitted_ns: int = 0
    uid: str = ""

    @property
    def queued(self) -> dict[str, Any] | None:
        """What stays with the run after it has begun; None if all of it is as by default."""
        kept = {"agent": self.agent, "priority": self.priority, "limit_key": self.limit_key}
        return {name: value for name, value in kept.items() if value} or None

    def is_same(self, other: Submission) -> bool:
        """Whether this one and ``other`` ask for the same work."""
        tasks = {plain(pack(one.task, "task")) for one in (self, other)}
        return len(tasks) == 1 and self.agent == other.agent

    def packed(self) -> Packed:
        """The body of the record."""
        names = ("task", "agent", "not_before_ns", "priority", "limit_key", "uid")
        return pack_map({name: pack(getattr(self, name), name) for name in names})


def submission_of(log: LogRecords, run_id: str) -> Submission | None:
    """The submission in a run's log; None if there is none."""
    if log.oldest_lsn > 1:
        return None
    record = log.fetch({1}).get(1)
    if record is None or record.kind != SUBMITTED:
        return None
    data = sealed_data(unpack_map(record.packed)["task"])
    keys = () if data is None else key_ids(data)
    fields = unpack(record.packed)
    return Submission(run_id, **fields, subject=keys, submitted_ns=record.time_ns)


def first_record_of(submission: Submission, signed: list[str] | None) -> RunStarted:
    """The record with which the run begins, as far as that is known without its agent. ``signed``:
    the kinds of messages that have to be signed."""
    subject = Subjects(submission.subject) if submission.subject else None
    return RunStarted(
        submission.run_id,
        pack(submission.task, "task"),
        submission.uid,
        rules=Rules(CURRENT),
        signed=signed,
        queued=submission.queued,
        subject=subject,
    )
