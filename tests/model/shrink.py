"""Makes a failing case small: program and schedule together, greedily."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from tests.model import language as l
from tests.model.carried import lost
from tests.model.generate import NEVER
from tests.model.hunt import Case
from tests.model.rules import Judged, judged

SECONDS = 40.0
NONSENSE = ("NameError", "TypeError", "UnboundLocalError")  # it is no program any more


def shrunk(case: Case, rule: str, seconds: float = SECONDS) -> tuple[Case, Judged]:
    """The smallest case found that breaks the same rule."""
    end, found = time.process_time() + seconds, judged(case.program, case.schedule)
    smaller = True
    while smaller and time.process_time() < end:
        smaller = False
        for other in candidates(case):
            if time.process_time() >= end:
                break
            try:
                if other.program.every != NEVER and lost(other.program):
                    continue
                tried = judged(other.program, other.schedule)
            except Exception:  # as above
                continue
            nonsense = any(name in str(tried.findings) for name in NONSENSE)
            if tried.findings and tried.findings[0].rule == rule and not nonsense:
                case, found, smaller = other, tried, True
                break
    return case, found


def candidates(case: Case) -> Iterator[Case]:
    """Smaller cases: without a life or fault, without a statement, with plainer options."""
    for schedule in smaller_terms(case.schedule):
        yield replace(case, schedule=schedule)
    for program in smaller_terms(case.program):
        if program.agents or program.nodes or program.plan:
            yield replace(case, program=program)


def smaller_terms(term: Any) -> Iterator[Any]:
    """The term with one thing less in it: large things first."""
    fields = sorted(dataclasses.fields(term), key=lambda field: field.name == "tools")
    for field in fields:
        value = getattr(term, field.name)
        if isinstance(value, tuple):
            fixed = isinstance(term, l.Program) and field.name in ("tools", "agents", "nodes")
            for other in shorter(value, fixed):
                yield replace(term, **{field.name: other})
        elif field.default is not dataclasses.MISSING and value != field.default:
            yield replace(term, **{field.name: field.default})
    for field in fields:
        value = getattr(term, field.name)
        for other in inner(value):
            yield replace(term, **{field.name: other})


def shorter(value: tuple[Any, ...], fixed: bool) -> Iterator[tuple[Any, ...]]:
    """Without one of them, or with what is in it in its place. ``fixed``: known by numbers."""
    for number, one in enumerate(value):
        before, after = value[:number], value[number + 1 :]
        if fixed:
            if number == len(value) - 1 and number:
                yield before
            continue
        yield before + after
        if isinstance(one, l.Try | l.Timeout | l.If | l.Loop | l.Finally):
            yield before + (one.then if isinstance(one, l.If) else one.body) + after
        if isinstance(one, l.Par | l.Race):
            yield from (before + branch.body + after for branch in one.branches)


def inner(value: Any) -> Iterator[Any]:
    """The value with a smaller term in it."""
    if isinstance(value, tuple):
        for number, one in enumerate(value):
            for other in inner(one):
                yield (*value[:number], other, *value[number + 1 :])
    elif isinstance(value, l.Term):
        if isinstance(value, l.Var | l.Get | l.Last):
            yield l.Lit("z")
        yield from smaller_terms(value)
