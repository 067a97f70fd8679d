"""What happens to a run, as data: how each of its lives ends, and what people do meanwhile.

These are terms as programs are, so that a program and its schedule shrink together.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.model.language import Agent, Term


@dataclass(frozen=True)
class Die(Term):
    """The process dies at its ``at``-th changing call of the disk; of a write so much arrives."""

    at: int
    torn: int = 0


@dataclass(frozen=True)
class DieAround(Term):
    """It dies before or after the ``effect``-th thing that it does outside."""

    effect: int
    after: bool


@dataclass(frozen=True)
class DieIn(Term):
    """It dies when so many seconds of this life have passed."""

    seconds: float


@dataclass(frozen=True)
class Break(Term):
    """That changing call of the disk fails, or writes too little."""

    at: int
    error: str  # as in errno, or "SHORT"


@dataclass(frozen=True)
class Rival(Term):
    """At the ``effect``-th thing done outside a second process comes: it runs the agent too, or it
    takes the run over."""

    effect: int
    takes_over: bool


@dataclass(frozen=True)
class Harm(Term):
    """Behind this life a bit of the newest checkpoint is another one; or, ``behind`` it, of some
    records: then people repair the log."""

    seed: int
    behind: bool = False


@dataclass(frozen=True)
class Stop(Term):
    """The agent is asked to stop after so many seconds."""

    seconds: float


@dataclass(frozen=True)
class Power(Term):
    """What was not flushed may be lost at the end of this life, and torn."""

    seed: int


@dataclass(frozen=True)
class Jump(Term):
    """Nobody has the run for so long before this life; people go on."""

    seconds: int


@dataclass(frozen=True)
class Limit(Term):
    """So many calls more may be made in this life: it has a budget."""

    calls: int


@dataclass(frozen=True)
class Settling(Term):
    """Who settles what is in doubt behind this life dies at that changing call of the disk, and
    the power is lost."""

    at: int
    torn: int
    power: int


@dataclass(frozen=True)
class Fork(Term):
    """Behind this life the run is forked at a step, and the fork goes on in its place; once."""

    seed: int


@dataclass(frozen=True)
class Edit(Term):
    """From this life on the agent's code is other code; people accept what that changes."""

    agent: Agent


@dataclass(frozen=True)
class Life(Term):
    faults: tuple[Term, ...] = ()


@dataclass(frozen=True)
class Signal(Term):
    """Somebody sends a signal, so many seconds after the run was begun."""

    seconds: int
    name: str


@dataclass(frozen=True)
class Schedule(Term):
    """``flush``: what is not waited for is flushed at every so-manieth chance (0: never)."""

    lives: tuple[Life, ...] = ()
    signals: tuple[Signal, ...] = ()
    flush: int = 0
