"""The terms of programs, and how they are kept as JSON.

Every term is a frozen dataclass whose fields are terms, tuples of terms, numbers or text, so that
one function can walk, shrink, store and read all of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Term:
    """Any part of a program."""


# -- what is read


@dataclass(frozen=True)
class Lit(Term):
    """A text."""

    text: str


@dataclass(frozen=True)
class Var(Term):
    """A local variable."""

    name: str


@dataclass(frozen=True)
class Get(Term):
    """A key of the state, or "none"."""

    key: str


@dataclass(frozen=True)
class Last(Term):
    """The newest message and how many there are."""


@dataclass(frozen=True)
class Task(Term):
    """What the run was given; in a tool, its argument; in a node, the memory's "task"."""


# -- conditions


@dataclass(frozen=True)
class Odd(Term):
    """Whether a value is one of about half of all values."""

    of: Term


@dataclass(frozen=True)
class Lacks(Term):
    """Whether the state lacks a key."""

    key: str


@dataclass(frozen=True)
class Silent(Term):
    """Whether there is no message yet."""


# -- statements

Block = tuple[Term, ...]


@dataclass(frozen=True)
class Call(Term):
    """``var = await run.call(tool, arg)``, in one of the ways in which people write it.

    ``how``: "call", "direct", or with the argument bound: "partial", "method", "closure", "lambda".
    ``note``: the parameter with a default: "" not given, "-" its default, other text.
    """

    var: str
    tool: int
    arg: Term
    how: str = "call"
    call_id: str = ""
    by_name: bool = False
    note: str = ""


@dataclass(frozen=True)
class Do(Term):
    """What a tool does outside; the reply."""

    var: str
    arg: Term


@dataclass(frozen=True)
class Trouble(Term):
    """The first ``times`` executions with these arguments raise here. In an agent: an error of its
    own, which nobody catches; the run goes on by itself, or when it is run again."""

    times: int
    kind: str


@dataclass(frozen=True)
class If(Term):
    condition: Term
    then: Block
    other: Block = ()


@dataclass(frozen=True)
class Loop(Term):
    """As often as a value says: 1 to ``most`` times."""

    var: str
    of: Term
    most: int
    body: Block


@dataclass(frozen=True)
class Branch(Term):
    """A coroutine: pauses (see World.pause), does something, returns a value."""

    pause: int
    body: Block
    value: Term


@dataclass(frozen=True)
class Par(Term):
    """Several coroutines. ``kind``: "gather", "careful" (return_exceptions), "group", "completed"
    (as_completed), "wait" (asyncio.wait, one after the other), "recorded" (the same, run.wait),
    "noted" (each notes in one list when it ends, and what it raises)."""

    var: str
    kind: str
    branches: tuple[Branch, ...]


IN_ORDER = ("completed", "wait", "recorded", "noted")  # of what comes: the one in which they end


@dataclass(frozen=True)
class Start(Term):
    """A task that goes on beside what comes next, until it is joined. ``over`` the steps: it is
    one of a list, of which a resumed process has those that it has begun."""

    task: str
    branch: Branch
    over: bool = False


@dataclass(frozen=True)
class Join(Term):
    """``var = await task``; of tasks over the steps: ``await asyncio.gather(*tasks)``."""

    var: str
    task: str
    over: bool = False


@dataclass(frozen=True)
class Race(Term):
    """The first ones to finish count, the others are cancelled."""

    var: str
    branches: tuple[Branch, ...]
    recorded: bool = False  # run.wait; else asyncio.wait


@dataclass(frozen=True)
class Timeout(Term):
    var: str
    seconds: float
    body: Block


@dataclass(frozen=True)
class Try(Term):
    """Catches Exception; ``var`` is its kind, or "fine"."""

    var: str
    body: Block


@dataclass(frozen=True)
class Finally(Term):
    body: Block
    last: Block


@dataclass(frozen=True)
class Stream(Term):
    """The result of a stream, left after so many chunks (0: read to its end)."""

    var: str
    tool: int
    arg: Term
    stop_after: int = 0


@dataclass(frozen=True)
class Child(Term):
    var: str
    agent: int
    arg: Term
    how: str = "function"  # or "partial"


@dataclass(frozen=True)
class Wait(Term):
    """A signal's value; "late" when ``timeout`` (0: none) is over."""

    var: str
    name: str
    timeout: int = 0


@dataclass(frozen=True)
class Undo(Term):
    var: str


@dataclass(frozen=True)
class Sleep(Term):
    seconds: int
    own: bool = False  # asyncio.sleep


@dataclass(frozen=True)
class Turns(Term):
    """So many turns of the event loop."""

    count: int


@dataclass(frozen=True)
class Put(Term):
    """``run.state[key] = value``; ``how``: "set", "default" (setdefault), "add" (to a list)."""

    key: str
    value: Term
    how: str = "set"


@dataclass(frozen=True)
class Say(Term):
    """A message more; or, with ``edit``, another one in place of the last."""

    value: Term
    edit: bool = False


@dataclass(frozen=True)
class Let(Term):
    """``name = value``; with ``grow`` made of what it was."""

    name: str
    value: Term
    grow: bool = False


@dataclass(frozen=True)
class Ask(Term):
    """``run.uuid()``, ``run.now()`` or ``run.random()``."""

    var: str
    what: str


# -- programs


@dataclass(frozen=True)
class Tool(Term):
    """A tool: its body is a block of the same language, its result a term, put into ``shape``."""

    name: str
    body: Block
    result: Term
    shape: str = "text"
    sync: bool = False
    after_crash: str = "park"
    retry: int = 1
    timeout: float = 0
    on_timeout: str = ""
    raises: bool = False  # whether DeclaredError is declared
    approval: bool = False
    approval_timeout: int = 0
    undo: bool = False
    chunks: int = 0  # of a generator


@dataclass(frozen=True)
class Agent(Term):
    """An agent function. What it returns is a list of these values."""

    prologue: Block
    steps: tuple[Block, ...]
    result: tuple[Term, ...]


@dataclass(frozen=True)
class Node(Term):
    """A node of a graph, with the edges that lead on. ``when``: "", "flaky" (a condition that
    raises the first time)."""

    name: str
    body: Block
    value: Term
    retry: int = 1
    timeout: int = 0
    to: tuple[int, ...] = ()
    when: str = ""


@dataclass(frozen=True)
class Plan(Term):
    """Steps of a plan, each a call of a tool, and how often the judge raises before it accepts."""

    calls: tuple[Call, ...]
    trouble: int = 0


@dataclass(frozen=True)
class Program(Term):
    """Agents (the first is the one that is run; the others are its children), or a graph."""

    tools: tuple[Tool, ...]
    agents: tuple[Agent, ...] = ()
    nodes: tuple[Node, ...] = ()
    plan: Plan | None = None
    every: int = 3
    keep: int = 0  # generations of checkpoints; what is older is removed; 0: nothing is
    plain: bool = False  # the agent is no coroutine


def walk(term: Any) -> Iterator[Term]:
    """The term and all in it, outer ones first."""
    if isinstance(term, tuple):
        for one in term:
            yield from walk(one)
    elif isinstance(term, Term):
        yield term
        for field in dataclasses.fields(term):
            yield from walk(getattr(term, field.name))


def to_json(term: Any) -> Any:
    """A term as JSON: objects with their type under "is", without what is as by default."""
    if isinstance(term, tuple):
        return [to_json(one) for one in term]
    if not isinstance(term, Term):
        return term
    made: dict[str, Any] = {"is": type(term).__name__}
    for field in dataclasses.fields(term):
        value = getattr(term, field.name)
        if value != field.default:
            made[field.name] = to_json(value)
    return made


def from_json(found: Any) -> Any:
    """The term that ``to_json`` has written."""
    if isinstance(found, list):
        return tuple(map(from_json, found))
    if not isinstance(found, dict):
        return found
    (kind,) = (kind for kind in Term.__subclasses__() if kind.__name__ == found["is"])
    return kind(**{k: from_json(v) for k, v in found.items() if k != "is"})
