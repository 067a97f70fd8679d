"""Draws a program, lives it once without a fault, then with faults that are aimed."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from tests.model import language as l
from tests.model import schedule as s
from tests.model.carried import lost
from tests.model.forks import can_be_forked
from tests.model.generate import NEVER, Generator
from tests.model.process import Process, features
from tests.model.rules import Judged, judged
from tests.model.table import EFFECTS, IN_PROGRAMS, impossible, least

REFUSABLE = {"methods", "nameless", "sets", "unrecordable"}
ALSO_WANTED = {*IN_PROGRAMS, "order"}  # what the table knows of programs; an order that they note
# Locals that a resumed run loses, too.
OFTEN_WANTED = (*sorted(REFUSABLE), "locals", *sorted(ALSO_WANTED))
PLAIN = 0.7  # of all programs have nothing of that
ERRORS = ("EIO", "ENOSPC", "SHORT")
OFTEN = {
    "die before effect": 3,
    "die after effect": 2,
    "die in time": 1,
    "disk error": 1,
    "a stop": 2,
    "die at disk call": 4,
    "a second process": 2,
    "damage": 1,
}
DRAWS_MAX = 100  # of programs, until one has what is wanted
RARE = 5  # so many times as often, where there is a pair that was never hit


@dataclass(frozen=True)
class Case:
    """A program and what happens to it."""

    program: l.Program
    schedule: s.Schedule


def once_harmed(lives: tuple[s.Life, ...]) -> tuple[s.Life, ...]:
    """Without damage to more than one checkpoint: where the beginning is gone, one stands in."""
    made, harmed = [], False
    for life in lives:
        faults = [one for one in life.faults if not (harmed and isinstance(one, s.Harm))]
        harms = [one for one in faults if isinstance(one, s.Harm)]
        faults = [one for one in faults if one not in harms[1:]]
        harmed |= bool(harms)
        made.append(s.Life(tuple(faults)))
    return tuple(made)


def under_way(like: Process, faults: list[l.Term]) -> list[frozenset[str]]:
    """What will be under way when this life ends by its faults, as far as that is known."""
    for fault in faults:
        match fault:
            case s.DieAround(at):
                return like.around[at : at + 1]
            case s.Die(at):
                return like.flights[at : at + 1]
    return []


@dataclass
class Hunt:
    """Cases from a seed, and the table of what was hit."""

    seed: int
    without: frozenset[str] = frozenset()  # of the features of programs
    often: frozenset[str] = frozenset()  # what else is in few of them
    table: Counter[tuple[str, str]] = field(default_factory=Counter)  # feature, fault
    counts: Counter[str] = field(default_factory=Counter)

    def program(self, number: int) -> tuple[l.Program, random.Random]:
        rng = random.Random(f"{self.seed} {number}")
        plain = REFUSABLE - self.often if rng.random() < PLAIN or self.often else set()
        generator = Generator(rng, self.without | plain)
        program = generator.program()
        wanted = self.wanted(number)
        for _ in range(DRAWS_MAX):
            if wanted(program):
                break
            program = generator.program()
        match self.more(number).randrange(8) if program.agents else 8:
            case 0:
                without = self.without | plain | {"concurrent", "nested", "race", "graph"}
                program = replace(Generator(rng, without).program(), plain=True)
            case 1 | 2:
                program = generator.beside(program)
            case 3:
                program = generator.fails_once(program)
            case 4:
                program = generator.orders(program)
        how = lost(program)
        if how == "computed" or (how and rng.random() < 0.4 and "locals" not in self.often):
            program = replace(program, every=NEVER)
        return program, rng

    def wanted(self, number: int) -> Callable[[l.Program], bool]:
        """Which programs are drawn: some have what was hit least so far."""
        if "locals" in self.often:
            return lambda program: lost(program) == "changed"
        if self.often & ALSO_WANTED:
            return lambda program: self.often & ALSO_WANTED <= features(program)
        if number % 2 == 0 or not self.table:
            return lambda program: True
        hit = {feature: least(self.table, feature) for feature in IN_PROGRAMS}
        rarest = [feature for feature in IN_PROGRAMS if hit[feature] == min(hit.values())]
        chosen = self.more(-number).choice(rarest)
        return lambda program: chosen in features(program)

    def more(self, number: int) -> random.Random:
        """What is drawn beside: programs and schedules stay as they are without it."""
        return random.Random(f"{self.seed} {number} more")

    def cases(self, number: int, schedules: int) -> Iterator[tuple[Case, Judged]]:
        """The cases of one program, judged; the first one has no fault."""
        program, rng = self.program(number)
        more = self.more(number)
        signals = tuple(
            s.Signal(rng.choice((0, 1, 3, 10, 60)), rng.choice("pq"))
            for _ in range(rng.choice((0, 1, 2, 3)))
        )
        flush = rng.choice((0, 0, 1, 3))
        first = s.Schedule((), signals, flush)
        found = self.live(Case(program, first))
        yield Case(program, first), found
        if found.findings or found.lived.end.how == "raised":
            return
        before = found.lived.processes
        for _ in range(schedules):
            lives = tuple(
                self.one_life(rng, before[min(n, len(before) - 1)], program)
                for n in range(rng.choice((1, 1, 2, 3)))
            )
            lives = tuple(self.and_more(more, life, program) for life in lives)
            lives = once_harmed(lives) if program.keep else lives
            if rng.random() < 0.25:
                lives = (*lives, s.Life((s.Jump(rng.choice((5, 100, 5000))),)))
            case = Case(program, s.Schedule(lives, signals, flush))
            found = self.live(case)
            yield case, found
            if found.findings:
                return
            before = found.lived.processes
        agent = None
        agent = Generator(more, self.without).edited(program) if can_be_forked(program) else None
        if agent is not None:
            lives = tuple(
                s.Life((s.DieAround(more.randrange(1 + len(before[0].around)), True),))
                for _ in range(more.choice((2, 3)))
            )
            edit = s.Life((s.Edit(agent), *lives[1].faults))
            lives = (lives[0], edit, *lives[2:])
            program = replace(program, every=NEVER, keep=0)
            case = Case(program, s.Schedule(lives, signals, flush))
            yield case, self.live(case)

    def live(self, case: Case) -> Judged:
        found = judged(case.program, case.schedule)
        self.counts["runs"] += 1
        self.counts["lives"] += len(found.lived.ends)
        self.counts["undecided"] += found.undecided
        self.counts += found.lived.counts
        if found.excused:
            self.counts[f"excused: {found.excused}"] += 1
        self.counts[f"ended: {found.lived.end.how}"] += 1
        for process in found.lived.processes:
            self.table.update(process.hit)
        return found

    def one_life(self, rng: random.Random, like: Process, program: l.Program) -> s.Life:
        """Faults for a life, aimed by what was going on in one that was like it."""
        faults: list[l.Term] = []
        match self.fault(rng, like):
            case "a second process" as why:
                at = self.aimed(rng, like.around, why)
                faults.append(s.Rival(at, rng.random() < 0.5))
                if rng.random() < 0.5:
                    faults.append(s.DieAround(at + rng.choice((0, 0, 1)), rng.random() < 0.5))
            case "damage" as why:
                faults.append(s.DieAround(self.aimed(rng, like.around, why), True))
                faults.append(s.Harm(rng.getrandbits(16)))
            case "die before effect" | "die after effect" as why:
                faults.append(s.DieAround(self.aimed(rng, like.around, why), "after" in why))
            case "die in time":
                faults.append(s.DieIn(self.moment(rng, like, "die in time")))
            case "disk error" as why:
                at = self.aimed(rng, like.flights, why)
                faults.append(s.Break(at, rng.choice(ERRORS)))
                if rng.random() < 0.4:
                    faults.append(s.Die(at + rng.randint(1, 4)))
            case "a stop":
                faults.append(s.Stop(self.moment(rng, like, "a stop")))
            case why:
                torn = rng.choice((0, 0, 1, 30, 1 << 20))
                faults.append(s.Die(self.aimed(rng, like.flights, why), torn))
        if isinstance(faults[0], s.Stop) and rng.random() < 0.6:
            return s.Life(tuple(faults))  # what is in doubt then, it has cut short
        if rng.random() < 0.3:
            faults.append(s.Power(rng.getrandbits(16)))
        never = self.least("damage", under_way(like, faults)) == 0
        if rng.random() < (0.5 if never else 0.1):
            faults.append(s.Harm(rng.getrandbits(16)))
        if rng.random() < 0.15:
            faults.append(s.Jump(rng.choice((5, 100, 5000))))
        return s.Life(tuple(faults))

    def and_more(self, rng: random.Random, life: s.Life, program: l.Program) -> s.Life:
        """What people do besides, and faults where the log alone says all."""
        more: list[l.Term] = []
        if program.plain:  # nobody else is at work while it is
            never = s.DieIn | s.Stop
            life = s.Life(tuple(one for one in life.faults if not isinstance(one, never)))
        if rng.random() < 0.15:
            torn = rng.choice((0, 30, 1 << 20))
            more.append(s.Settling(rng.choice((1, 3, 5, 9, 99)), torn, rng.getrandbits(16)))
        if can_be_forked(program):
            match rng.randrange(12):
                case 0 | 1:
                    more.append(s.Fork(rng.getrandbits(16)))
                case 2:
                    more.append(s.Limit(rng.randrange(8)))
                case 3 | 4 | 5 if not program.keep:
                    more.append(s.Harm(rng.getrandbits(16), behind=True))
        return s.Life((*life.faults, *more))

    def fault(self, rng: random.Random, like: Process) -> str:
        """A fault: often, more often where it can hit what it has hit least."""
        weights = [
            often * (1 + RARE / (1 + self.least(fault, flights)))
            for fault, often in OFTEN.items()
            for flights in [like.around if fault in EFFECTS else like.flights]
        ]
        return rng.choices(list(OFTEN), weights)[0]

    def least(self, fault: str, flights: list[frozenset[str]]) -> int:
        features = {feature for flight in flights for feature in flight}
        return min(
            (self.table[feature, fault] for feature in features if not impossible(feature, fault)),
            default=1000,
        )

    def moment(self, rng: random.Random, like: Process, fault: str) -> float:
        """A time at which this fault hits what it has hit least."""
        # What is under way at a call of the disk is so since the call before, and often over soon.
        spans = list(zip((0.0, *like.times), like.times, like.flights, strict=False))
        spans = [(since, until, flight) for since, until, flight in spans if since < until]
        if not spans:
            return rng.choice((0, 0.5, 1, 2))
        since, until, _ = spans[self.aimed(rng, [flight for _, _, flight in spans], fault)]
        return rng.choice(((since + until) / 2, (since + until) / 2, until, until + 0.5))

    def aimed(self, rng: random.Random, flights: list[frozenset[str]], fault: str) -> int:
        """A place where this fault hits what it has hit least."""
        if not flights:
            return 0
        weights = [
            1 / (1 + min(self.table[feature, fault] for feature in flight)) for flight in flights
        ]
        return rng.choices(range(len(flights)), weights)[0]
