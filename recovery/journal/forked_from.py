"""Defines the link of a run to the run that it was forked from. Pure."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

from eventlog.errors import Damage
from recovery.errors import DamagedRunError, RecoveryError
from recovery.journal.events import RunStarted
from recovery.text import shorten

_NUMBERS = ("step", "lsn", "seen", "until", "base", "optional")


@dataclass(frozen=True, slots=True)
class ForkedFrom:
    """Where a run came from: run ``run_id`` (its ``uid``), as it was at the end of step ``step``.

    ``lsn``: the last record of that time in the old log. ``seen``: the last record of the old log
    when it was read. ``who`` and ``why``: as given to ``fork``.

    The others are about the new log. ``until``: the LSN of the last record that the fork wrote.
    ``base``: the LSN of the checkpoint among them, 0 without one. ``optional``: calls up to this
    LSN may not be made again, because the task is another one.
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
        """The link as ``of`` reads it."""
        return asdict(self)

    def check(self, run_id: str, last: int, restored: int, broken: tuple[Any, ...]) -> None:
        """Raise unless everything that the fork wrote is there, up to LSN ``last``, and the run is
        resumed from its checkpoint or a later one: earlier records are not the whole history."""
        if restored >= self.base and last >= self.until:
            return
        if not broken:
            raise RecoveryError(
                f"run {run_id!r} is a fork of {self.run_id!r} that was not finished; nothing was "
                f"executed. store.run({self.run_id!r}).fork with the same arguments finishes it."
            )
        what = f"the checkpoint with which the fork began: {broken[0]}"
        raise DamagedRunError(run_id, [Damage.of_records(self.base, self.base, what)])


_NOTHING = ForkedFrom("", "", 0, 0)
