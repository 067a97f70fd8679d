"""Agent programs by the dozen: random ones, and edits of their code."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from tests.property.agents import CAREFUL, LONG, PLAIN, SYNC, Branch, Do, Program

small = st.integers(0, 3)
pauses = st.sampled_from([0, 0, 1, 1, 2, 2, 3, 3, LONG])
text = st.sampled_from(["a", "b", "otter " * 8, "long"])


@st.composite
def dos(draw: Any, names: tuple[str, ...], x: Any = None, then: tuple[str, ...] = ("",)) -> Do:
    name = draw(st.sampled_from(names))
    x = draw(x if x is not None else st.sampled_from(
        ["a", "b", 7, "last", "messages", "count", "state", "big"]))  # fmt: skip
    delay = draw(small)
    return Do(name, x, draw(st.sampled_from(["", "", "id"])), draw(st.booleans()),
              draw(st.sampled_from(then)), delay)  # fmt: skip


BOOKINGS = ("sync_booking",)
THEN = ("", "append", "wrap", "state")


@st.composite
def branches(draw: Any, names: tuple[str, ...], count: int, label: str = "") -> tuple[Branch, ...]:
    made = []
    for number in range(count):
        # Equal calls of several branches are told apart by occurrence alone.
        x = st.sampled_from([f"{label}same", f"{label}{number}"])
        then = ("",) if label else ("", "append", "wrap")
        first = draw(dos(names, x, then))
        call_id = first.call_id and f"{first.call_id}-{number}"
        delay = draw(st.sampled_from([0, 1, 2, 3, 30]))
        # A plain tool called directly in async code cannot wait for its turn.
        direct = first.direct and first.tool not in SYNC
        first = replace(first, call_id=call_id, late=draw(small), delay=delay, direct=direct)
        second = draw(st.none() | dos(names, st.just("unused"), then))
        if second is not None:
            direct = second.direct and second.tool not in SYNC
            call_id = second.call_id and f"{second.call_id}-{number}b"
            second = replace(second, call_id=call_id, direct=direct)
        made.append(Branch(draw(pauses), first, draw(pauses), second))
    return tuple(made)


def message_ops() -> st.SearchStrategy[Any]:
    return st.one_of(
        st.tuples(st.just("append"), text | st.integers(-9, 9)),
        st.tuples(st.just("append"), st.fixed_dictionaries({"role": text, "n": st.integers(0, 9)})),
        st.tuples(st.just("edit"), small, text),
        st.tuples(st.just("trim"), small, small),
        st.tuples(st.just("replace"), small, st.lists(text, max_size=3)),
        st.tuples(st.just("insert"), small, text),
        st.tuples(st.just("pop"), small),
    )


def state_ops() -> st.SearchStrategy[Any]:
    key = st.sampled_from(["k", "l"])
    return st.one_of(
        st.tuples(st.just("set"), key, st.sampled_from(["last", "count", "plain", 5])),
        st.tuples(st.just("nest"), key, st.integers(0, 9)),
        st.tuples(st.just("forget"), key),
    )


@st.composite
def operations(draw: Any, plain: bool, where: int) -> tuple[Any, ...]:
    kinds = ["message", "message", "state", "call", "call", "call", "ask", "fail_once"]
    kinds += ["book", "book", "undo", "rest", "hear"]
    kinds += [] if plain else ["gather", "gather", "group", "failing group", "pause"]
    made: list[Any] = []
    for number in range(draw(st.integers(0, 4))):
        match draw(st.sampled_from(kinds)):
            case "message":
                made.append(draw(message_ops()))
            case "state":
                made.append(draw(state_ops()))
            case "call":
                do = draw(dos(PLAIN if plain else CAREFUL, None, THEN))
                # The model never gives one id to two calls.
                do = replace(do, call_id=do.call_id and f"{do.call_id}-{number}")
                made += [("call", do)] * draw(st.sampled_from([1, 1, 2]) if not do.call_id
                                              else st.just(1))  # fmt: skip
            case "book":
                name = "sync_booking" if plain else draw(st.sampled_from(["booking", *BOOKINGS]))
                direct = draw(st.booleans()) and (plain or name not in BOOKINGS)
                do = Do(name, f"{where} {number}", "", direct, draw(st.sampled_from(THEN)))
                made.append(("call", do))
            case "undo":
                made.append(("undo",))
            case "ask":
                use = draw(st.sampled_from(["", "sync_retry", "sync_park"]))
                made.append(("ask", draw(st.sampled_from(["now", "random", "uuid"])), number, use))
            case "rest" | "hear" | "fail_once" as kind:
                uses: dict[str, list[tuple[Any, ...]]] = {
                    "rest": [(0,), (1,), (2,)], "fail_once": [(number,)],
                    "hear": [(number, None), (number, 0), (number, 1)],
                }  # fmt: skip
                made.append((kind, *draw(st.sampled_from(uses[kind]))))
            case "gather":
                made.append(("gather", draw(branches(CAREFUL, draw(st.integers(2, 4))))))
            case "group":
                names = tuple(n for n in CAREFUL if "fail" not in n)
                made.append(("group", draw(branches(names, draw(st.integers(2, 3))))))
            case "failing group":
                names = ("park", "retry", "reconcile")
                doomed = draw(branches(names, 2, "may-cancel "))
                bad = Branch(draw(small), Do("fail", "may-cancel", delay=draw(small)), 0)
                made.append(("group", (*doomed, bad)))
            case "pause":
                made.append(("pause", draw(small)))
    return tuple(made)


@st.composite
def programs(draw: Any, steps_max: int = 5, plain: bool | None = None) -> Program:
    is_plain = draw(st.sampled_from([False, False, False, True])) if plain is None else plain
    prologue = draw(operations(is_plain, 0))
    steps = [list(draw(operations(is_plain, i + 1)))
             for i in range(draw(st.integers(1, steps_max)))]  # fmt: skip
    if not is_plain and draw(st.booleans()):
        # A task that is started in one step and awaited in a later one, where it left its result.
        first = draw(st.integers(-1, len(steps) - 1))
        (made,) = draw(branches(CAREFUL, 1))
        keep = Do(made.first.tool, "background", "", made.first.direct, "background",
                  draw(st.integers(0, 30)))  # fmt: skip
        task = Branch(made.before, keep, made.between, None)
        last = draw(st.integers(max(0, first), len(steps) - 1))
        at = steps[first] if first >= 0 else None
        if at is None:
            prologue = (*prologue, ("start", "bg", task))
        else:
            at.append(("start", "bg", task))
        steps[last].append(("join", "bg"))
    if draw(st.sampled_from([False] * 5 + [True])):
        name = draw(st.sampled_from(["fail"] if is_plain else ["fail", "fail_declared"]))
        steps[-1].append(("call", Do(name, "fatal", caught=False)))
    return Program(prologue, tuple(map(tuple, steps)), draw(st.integers(1, 4)),
                   draw(st.sampled_from([600, 2000, 1 << 20])), is_plain)  # fmt: skip


# -- edits of the code

MUTATIONS = (
    "argument", "drop", "add", "swap", "rename", "message", "call id", "move", "grow", "shrink",
    "task", "tool", "policy",
)  # fmt: skip
# Tools of the same name in the log, after an edit of their policy.
OTHER_POLICY = {
    "park": "park, repeatable", "retry": "retry, parking",
    "sync_park": "sync_park, repeatable", "sync_retry": "sync_retry, parking",
}  # fmt: skip


def distinct(program: Program) -> Program:
    """The program with another argument for every call, by which its effects are known."""
    labels = itertools.count()

    def labelled(op: Any) -> Any:
        match op:
            case Do():
                # Plain tools called directly beside other tasks do not wait for recorded calls.
                direct = op.direct and (program.plain or op.tool not in SYNC)
                return replace(op, x=f"label {next(labels)}", direct=direct)
            case Branch():
                second = op.second and labelled(op.second)
                return replace(op, first=labelled(op.first), second=second)
            case tuple():
                return tuple(labelled(part) for part in op)
        return op

    steps = labelled(program.steps)
    return replace(program, prologue=labelled(program.prologue), steps=steps)


def plainly(program: Program) -> bool:
    """Whether no call of the program hides others, or is cancelled."""
    text = repr(program)
    return "outer" not in text and "may-cancel" not in text and "fatal" not in text


def mutated(program: Program, what: str, rng: random.Random) -> Program | None:
    """The program after an edit of its code; None where there is nothing to edit like that."""
    blocks = [list(block) for block in (program.prologue, *program.steps)]
    kind = "append" if what == "message" else "call"
    places = [(b, i) for b, block in enumerate(blocks) for i, op in enumerate(block)
              if op[0] == kind]  # fmt: skip
    if not places:
        return None
    b, i = rng.choice(places)
    op, added = blocks[b][i], ("call", Do("sync_park" if program.plain else "park", "added"))
    match what:
        case "drop":
            del blocks[b][i]
        case "shrink":
            del blocks[b][i:]
        case "add":
            blocks[b].insert(i, added)
        case "grow":
            blocks[b].append(added)
        case "move":
            if b + 1 == len(blocks):
                return None
            blocks[b + 1].insert(0, blocks[b].pop(i))
        case "swap":
            others = [j for b2, j in places if b2 == b and j != i]
            if not others:
                return None
            j = rng.choice(others)
            blocks[b][i], blocks[b][j] = blocks[b][j], blocks[b][i]
        case "message":
            blocks[b][i] = ("append", "edited")
        case _:
            changed = _changed(op[1], what, program.plain)
            if changed is None:
                return None
            blocks[b][i] = changed
    prologue, *steps = map(tuple, blocks)
    return replace(program, prologue=prologue, steps=tuple(steps))


def _changed(do: Do, what: str, plain: bool) -> tuple[Any, ...] | None:
    match what:
        case "argument":
            return "call", replace(do, x=do.x + " changed")
        case "call id":
            return "call", replace(do, call_id=f"{do.call_id}-x", direct=False)
        case "rename":
            other = {"park": "reconcile", "sync_park": "sync_retry"}.get(do.tool, "park")
            return "call", replace(do, tool=other)
        case "task" | "tool":
            return None if plain else ("within", what, do)
        case "policy" if do.tool in OTHER_POLICY:
            return "call", replace(do, tool=OTHER_POLICY[do.tool], direct=False)
    return None
