"""Defines the report of a crash test, and formats it for people."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["ran twice", "forgotten", "in doubt", "differs", "lost", "stuck", "raised"]

NEVER = "without any crash"  # the point of a finding about the agent itself
TEXT_SIZE_MAX = 2000  # of one finding

_VARYING = re.compile(r"\b(?:\d+ times|twice|once|[0-9a-f]*\d[0-9a-f-]*)\b")

# The worst first, each with its remedy: the last line of a report is the remedy of its worst one.
WHAT_TO_DO: Mapping[Kind, str] = {
    "ran twice": "See above why each could run again. A function that is not recorded: decorate it "
    "with @tool, or call it with run.call(...). A reconcile function: have it look for the effect "
    "by the idempotency key. Where repeating does no harm: @tool(after_crash='retry').",
    "forgotten": "Nothing in the agent: the library has lost sight of the call. Report it, with "
    "the agent and the crash point.",
    "lost": "Make the effect inside a recorded call, and let a reconcile function say that it "
    "happened only when it has seen it: a resumed run believes both.",
    "differs": "Keep values that a later step needs in run.state and run.messages, and take what "
    "changes from run to run (time, random numbers, ids, files, answers of services) from "
    "run.now(), run.random(), run.uuid() or a tool.",
    "raised": "Read the error: a DivergenceError means that the agent did something else when it "
    "was run again, so what it does depends on more than its task and the record.",
    "stuck": "Find what the agent waits for: a resumed run gets recorded results at once, so "
    "the code that should wake it up may have run before it waits.",
    "in doubt": "A person has to settle such a call, unless its tool can: @tool(reconcile=...) "
    "asks whether it happened, @tool(after_crash='retry') says that repeating it does no harm.",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """A consequence of a crash.

    ``point``: where the process died, in words. ``tool``: the tool it is about, "" for the agent
    itself. ``what``: one sentence that says what is wrong for a user. The sentence is the same at
    every point, so that a report can group them. ``allowed``: the author declared it harmless.
    """

    kind: Kind
    point: str
    tool: str = ""
    what: str = ""
    allowed: bool = False


@dataclass(frozen=True, slots=True)
class CrashReport:
    """The result of killing an agent at many points. ``str()`` is for people.

    ``points``: how many crash points were tried, of ``possible`` ones (0: unknown).
    ``resumptions``: how often a run was resumed. ``reference``: the result of the run without a
    crash, shortened. ``effects``: how often each tool was executed in that run. ``strict``: a call
    in doubt is a failure too. ``notes``: what the test could not see, and why.
    """

    agent: str
    points: int
    resumptions: int
    reference: str
    findings: tuple[Finding, ...] = ()
    effects: Mapping[str, int] = field(default_factory=dict)
    seed: int = 0
    possible: int = 0
    strict: bool = False
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether all findings are allowed."""
        return not self.failures

    @property
    def failures(self) -> tuple[Finding, ...]:
        """The findings that are not allowed."""
        return tuple(found for found in self.findings if self._fails(found))

    def _fails(self, found: Finding) -> bool:
        return not found.allowed and (self.strict or found.kind != "in doubt")

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        groups = _folded(self.findings)
        failing = sum(self._fails(alike[0]) for alike in groups)
        points = len({found.point for found in self.failures} - {NEVER})
        verdict = "survives a crash at every point that was tried"
        if failing:
            where = f", at {_count(points, 'crash point')}" if points else f" {NEVER}"
            verdict = _count(failing, "fault") + where
        yield f"{self.agent}: {verdict}"
        tool = None
        for alike in groups:
            if alike[0].tool != tool:
                tool = alike[0].tool
                yield f"  {tool or 'the agent itself'}"
            yield from self._finding_lines(alike)
        yield from (f"  note: {note}" for note in self.notes)
        yield f"  without a crash: {self.reference}; executed {self._executed()}"
        tried = _count(self.points, "crash point")
        if self.possible > self.points:
            tried += f" (of {self.possible})"
        yield f"  {tried}, {_count(self.resumptions, 'resumption')}, seed {self.seed}"
        yield self._advice()

    def _finding_lines(self, alike: list[Finding]) -> Iterator[str]:
        first, count = alike[0], len({found.point for found in alike})
        kind = first.kind.upper() if self._fails(first) else f"{first.kind} (allowed)"
        if first.allowed and first.kind == "ran twice":  # as its author wants it
            kind = "made again (allowed)"
        what = first.what if len(first.what) <= TEXT_SIZE_MAX else first.what[:TEXT_SIZE_MAX] + "…"
        yield f"    {kind}: {what}".replace("\n", "\n      ")
        where = first.point if count == 1 else f"{count} points, the first: {first.point}"
        yield f"      {where}"

    def _executed(self) -> str:
        return ", ".join(f"{tool} {_count(n, 'time')}" for tool, n in self.effects.items()) or (
            "no tool"
        )

    def _advice(self) -> str:
        kinds = {found.kind for found in self.failures}
        kinds = kinds or {found.kind for found in self.findings if not found.allowed}
        for worst, advice in WHAT_TO_DO.items():
            if worst in kinds:
                return f"What to do: {advice}"
        return "Nothing to do."


def _folded(findings: tuple[Finding, ...]) -> list[list[Finding]]:
    """Groups equal findings at several points, by tool, the worst first.

    Numbers and ids are ignored: they differ from point to point.
    """
    groups: dict[tuple[str, Kind, str, bool], list[Finding]] = {}
    for found in findings:
        what = _VARYING.sub("#", found.what)
        groups.setdefault((found.tool, found.kind, what, found.allowed), []).append(found)
    rank = list(WHAT_TO_DO)
    return sorted(
        groups.values(),
        key=lambda alike: (
            alike[0].tool == "",
            alike[0].tool,
            alike[0].allowed,
            rank.index(alike[0].kind),
        ),
    )


def _count(n: int, what: str) -> str:
    return f"{n} {what}" if n == 1 else f"{n} {what}s"
