"""Which run a run was forked from. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

from eventlog._dataclass import dataclass
from eventlog._errors import Damage
from recovery._errors import DamagedRunError, RecoveryError
from recovery._events import Event, RunStarted, decode
from recovery._shorten import shorten
from recovery._snapshots import checked_body, checkpoints_in, prologue_in

if TYPE_CHECKING:
    from eventlog import Record
    from recovery._history import RunRecords

_NUMBERS = ("step", "lsn", "seen", "until", "base", "optional")


@dataclass(frozen=True, slots=True)
class ForkedFrom:
    """Where a run came from: run ``run_id`` (its ``uid``), as it was at the end of step ``step``.

    ``lsn``: the last record of that time, there. ``who`` and ``why``: as given to ``fork``. The
    rest says what the new log holds of it: ``until`` (LSN of the last record that was written by
    the fork), ``base`` (LSN of the checkpoint among them, 0 without one), ``optional`` (calls up to
    this LSN may not come again, since the task is another one), ``seen`` (the last record there
    when it was read).
    """

    run_id: str
    uid: str
    step: int
    lsn: int
    who: str = ""
    why: str = ""
    seen: int = 0
    until: int = 0
    base: int = 0
    optional: int = 0

    @classmethod
    def of(cls, started: RunStarted | None) -> ForkedFrom | None:
        """The link in a run's first record; RecoveryError when it makes no sense."""
        link = started.forked_from if started is not None else {}
        if not link:
            return None
        try:
            types = {field.name: type(getattr(_NOTHING, field.name)) for field in fields(cls)}
            found = cls(**{name: link[name] for name in types if name in link})
            if any(type(getattr(found, name)) is not wanted for name, wanted in types.items()):
                raise TypeError
            if min(getattr(found, name) for name in _NUMBERS) < 0 or found.base > found.until:
                raise ValueError
        except (TypeError, ValueError):
            raise RecoveryError(
                f"the link to the run it was forked from is {shorten(link, 200)}"
            ) from None
        return found

    def packable(self) -> dict[str, Any]:
        """What ``of`` reads."""
        return asdict(self)

    def check(self, run_id: str, last: int, restored: int, broken: tuple[Any, ...]) -> None:
        """Raise unless all that the fork wrote is there, up to LSN ``last``, and the run is resumed
        from its checkpoint, or a later one: records before that do not tell the whole story."""
        if restored >= self.base and last >= self.until:
            return
        if not broken:
            raise RecoveryError(
                f"run {run_id!r} is a fork of {self.run_id!r} that was not finished; nothing was "
                "executed. recovery.fork with the same arguments finishes it."
            )
        what = f"the checkpoint with which the fork began: {broken[0]}"
        raise DamagedRunError(run_id, [Damage(0, 0, 0, self.base, self.base, what)])


_NOTHING = ForkedFrom("", "", 0, 0)


def started_of(
    log: RunRecords, read: Callable[[Record], Event | None] = decode
) -> RunStarted | None:
    """How a run's log says it began; None for one that no agent has run.

    Where retention has removed its beginning, the newest checkpoint that can be read says it.
    """
    if log.oldest_lsn > 1:
        return _started_in_checkpoint(log, read)
    for record in log.records(1, on_damage=lambda damage: None):
        try:
            event = read(record)
        except ValueError:
            continue
        if isinstance(event, RunStarted):
            return event
        if event is not None:
            return None
    return None


def _started_in_checkpoint(
    log: RunRecords, read: Callable[[Record], Event | None]
) -> RunStarted | None:
    for snapshot in checkpoints_in(log, lambda damage: None):
        try:
            body = checked_body(snapshot)
            first = min(body["prologue"], default=0)  # it is the first of all records
            record = prologue_in(log, [first], body["generation"]).get(first)
            event = read(record) if record is not None else None
        except ValueError:
            continue
        if isinstance(event, RunStarted):
            return event
    return None
