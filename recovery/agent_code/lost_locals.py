"""Finds local variables that a resumed run would lose, in an agent function's source. Pure.

A variable is lost when it is made before the loop of steps and changed in it: a run that is resumed
from a checkpoint makes it again. It is not lost if it is made from ``run.state`` or
``run.messages``, if each turn of the loop assigns it before reading it, or if no code reads it.
Uncertain cases are not reported: a wrong warning is worse than none.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from recovery.agent_code.loop_variables import (
    DISPLAYS,
    MUTATORS,
    Loop,
    Turn,
    bound_in,
    functions_in,
    loads_in,
    name_of,
    own_nodes,
    root_of,
)

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef

_CONTAINERS = {
    "list",
    "dict",
    "set",
    "deque",
    "defaultdict",
    "Counter",
    "OrderedDict",
    "bytearray",
    "sorted",
}
_KEPT = ("state", "messages")
_TOGETHER = ("zip", "zip_longest", "enumerate", "islice")


@dataclass(frozen=True, slots=True)
class LostLocal:
    """A local variable, the line where it is made, and the line where it is changed.

    ``in_call``: the change is inside a tool, which is not executed again on replay. ``loop``: the
    line of the loop. ``how``: "beside" and "in place": the kind of change, where it has no line of
    its own. "apart": what is in the state is the same object, but not in a resumed run; it was put
    there in line ``made``.
    """

    name: str
    made: int
    changed: int
    in_call: bool = False
    loop: int = 0
    how: Literal["", "beside", "in place", "apart"] = ""


@dataclass(slots=True)
class _Made:
    """Where a variable is made before the loop: the last line, and all values."""

    line: int
    values: list[ast.expr | None] = field(default_factory=list)


def has_loop(function: FunctionNode, run: str) -> bool:
    """Whether the loop of steps of this run is in the function, or in one that it defines."""
    return next(_loops(function, run), None) is not None


@functools.lru_cache(maxsize=256)  # each run of an agent asks, at its first checkpoint
def lost_locals(function: FunctionNode, run: str) -> tuple[LostLocal, ...]:
    """The variables that a resumption would lose; ``run``: the name of the run in the function."""
    finder = _finder(function, run)
    return () if finder is None else tuple(finder.lost())


def may_be_lost(function: FunctionNode, run: str) -> Callable[[str, bool], bool]:
    """The names that would be lost if their values are changed in place where the source does not
    show it: those that the loop reads, except those that ``lost_locals`` reports. Besides the name
    it is asked whether the value is in the state."""
    finder = _finder(function, run)
    return (lambda _, __: False) if finder is None else finder.may_be_lost


@functools.lru_cache(maxsize=256)
def _finder(function: FunctionNode, run: str) -> _Finder | None:
    found = next(_loops(function, run), None)
    return None if found is None else _Finder(*found, run)


def _loops(function: FunctionNode, run: str) -> Iterator[tuple[list[FunctionNode], Loop]]:
    """The loops of steps, each with the functions around it, the outermost first."""

    def inside(
        node: ast.AST, around: list[FunctionNode]
    ) -> Iterator[tuple[list[FunctionNode], Loop]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                yield from inside(child, [*around, child])
                continue
            if isinstance(child, ast.For | ast.AsyncFor | ast.While) and _is_loop(child, steps):
                yield around, child
            yield from inside(child, around)

    steps = {f"{run}.steps"}
    for node in ast.walk(function):  # steps = run.steps()
        if isinstance(node, ast.Assign) and _asks_for_steps(node.value, steps):
            steps |= {name for target in node.targets if (name := name_of(target))}
    yield from inside(function, [function])


def _asks_for_steps(value: ast.expr, names: set[str]) -> bool:
    return any(name_of(node) in names for node in ast.walk(value))


def _is_loop(loop: Loop, steps: set[str]) -> bool:
    """Whether it iterates over the steps, or takes one by one with ``next``."""
    if not isinstance(loop, ast.While):
        return _asks_for_steps(loop.iter, steps)
    return any(
        isinstance(node, ast.Call)
        and name_of(node.func) in ("next", "anext")
        and any(name_of(one) in steps for one in node.args[:1])
        for node in ast.walk(loop)
    )


class _Finder:
    def __init__(self, around: list[FunctionNode], loop: Loop, run: str) -> None:
        self._around, self._loop, self._run = around, loop, run
        self._made: dict[str, _Made] = {}
        self._put: dict[str, int] = {}  # into the state before the loop, and in which line
        functions: dict[str, FunctionNode] = {}
        for function, inner in zip(around, [*around[1:], None], strict=True):
            functions |= functions_in(function)
            self._look_before(function, inner)
        for function in around:
            functions.pop(function.name, None)
        self._turn = Turn(loop, functions, self._read_after())
        self._find_put()

    def lost(self) -> Iterator[LostLocal]:
        loop = self._loop.lineno
        for name, change in sorted(self._turn.changes.items(), key=lambda one: one[1].line):
            made, root = self._made.get(name), name.partition(".")[0]
            put = self._put.get(name) or self._put.get(root)
            if put and not (change.rebound and name in self._put):
                yield LostLocal(name, put, change.line, change.in_call, loop, "apart")
                continue
            if made is None or name not in self._turn.read or self._is_in_state(name):
                continue
            if self._comes_from_run(name, set()):
                is_lost = (
                    not self._is_saved(name)
                    if change.rebound
                    else self._is_copy(name) and not self._may_be_saved(name)
                )
            elif change.rebound:
                is_lost = not self._is_made_anew(name, change.values)
            else:
                is_lost = self._is_container(name, set())
            if is_lost:
                yield LostLocal(name, made.line, change.line, change.in_call, loop)
        if not isinstance(self._loop, ast.While):
            yield from self._beside(self._loop.iter)

    def _beside(self, iterated: ast.expr) -> Iterator[LostLocal]:
        """How certain it is that a value is iterated together with the steps."""
        name = (
            (name_of(iterated.func) or "").rpartition(".")[2]
            if isinstance(iterated, ast.Call)
            else ""
        )
        if not isinstance(iterated, ast.Call) or name not in _TOGETHER:
            return
        beside = [one for one in iterated.args if f"{self._run}.steps" not in loads_in(one)]
        known = (name_of(one) for one in beside)
        if not any(self._looks_at_run(one) for one in beside) and not any(
            self._comes_from_run(one, set()) for one in known if one
        ):
            line = self._loop.lineno
            yield LostLocal(ast.unparse(iterated), line, line, loop=line, how="beside")

    def may_be_lost(self, name: str, is_in_state: bool) -> bool:
        """Whether it would be lost if it were changed in place: ``x``, or ``x.y``."""
        change, read = self._turn.changes.get(name), self._turn.read
        root = name.partition(".")[0]
        if is_in_state and not {name, root} & self._put.keys():
            return False
        if change is not None and (name not in read or (change.rebound and name == root)):
            return False
        if root not in {one.partition(".")[0] for one in read}:
            return False
        return not self._comes_from_run(root, set()) and (
            is_in_state or not self._is_argument_saved(root)
        )

    def _is_argument_saved(self, name: str) -> bool:
        """Whether it is passed to the function, which puts it into the state: the origin of such a
        value is unknown here."""
        return name not in self._made and self._is_put_into_state({f"{self._run}.state"}, name)

    # -- before the loop

    def _look_before(self, function: FunctionNode, inner: FunctionNode | None) -> None:
        """Assignments of a function around the loop; of the innermost one, before the loop."""
        if inner is None:  # a name that it binds hides one of the functions around it
            for name in bound_in(function):
                self._made.pop(name, None)
        defaults = [*function.args.defaults, *filter(None, function.args.kw_defaults)]
        given = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
        for argument, value in zip(reversed(given), reversed(defaults), strict=False):
            self._add(argument.arg, value.lineno, value)
        for node in own_nodes(function):
            if inner is None and getattr(node, "lineno", 0) >= self._loop.lineno:
                continue
            match node:
                case ast.Assign(targets=targets, value=value):
                    for target in targets:
                        self._bind(target, value)
                case ast.AnnAssign(target=target, value=ast.expr() as value):
                    self._bind(target, value)
                case ast.NamedExpr(target=target, value=value):
                    self._bind(target, value)
                case ast.For(target=target) | ast.AsyncFor(target=target):
                    self._bind(target, None)
                case ast.withitem(optional_vars=ast.expr() as target):
                    self._bind(target, None)

    def _bind(self, target: ast.expr, value: ast.expr | None) -> None:
        match target:
            case ast.Tuple(elts=targets) | ast.List(elts=targets):
                parts = value.elts if isinstance(value, ast.Tuple | ast.List) else []
                alike = len(parts) == len(targets)
                for i, one in enumerate(targets):
                    self._bind(one, parts[i] if alike else None)
            case ast.Starred(value=one):
                self._bind(one, None)
            case _ if name := name_of(target):
                self._add(name, target.lineno, value)

    def _add(self, name: str, line: int, value: ast.expr | None) -> None:
        made = self._made.setdefault(name, _Made(line))
        made.line = line
        made.values.append(value)

    def _read_after(self) -> set[str]:
        """The names read after the loop, or in the functions around the loop's function."""
        inner = self._around[-1]
        last = self._loop.end_lineno or 0
        found = {
            name
            for node in ast.walk(inner)
            if getattr(node, "lineno", 0) > last
            for name in loads_in(node)
        }
        for function in self._around[:-1]:
            found |= {name for node in own_nodes(function) for name in loads_in(node)}
        return found

    def _find_put(self) -> None:
        """Find what is put into the state before the loop. A resumed run has the state of the
        checkpoint, and not this object in it, unless it was taken from the state."""
        states = self._states()
        for function in self._around:
            for node in own_nodes(function):
                if getattr(node, "lineno", self._loop.lineno) >= self._loop.lineno:
                    continue
                match node:
                    case ast.Assign(targets=targets, value=value):
                        into = {root_of(one) for one in targets}
                        given = [value, *(one for one in targets if isinstance(one, ast.Name))]
                    case ast.Call(func=ast.Attribute(value=receiver, attr=attr)):
                        into = {root_of(receiver)} if attr in MUTATORS else set()
                        given = _given_to(node)
                    case _:
                        continue
                if not into & states:
                    continue
                for name in (name for one in given for name in _objects_in(one)):
                    if not self._comes_from_run(name, set()):
                        self._put.setdefault(name, node.lineno)

    def _states(self) -> set[str]:
        """The state of the run, and the variables that are the same dict."""
        state = f"{self._run}.state"
        return {state} | {
            name
            for name, made in self._made.items()
            if any(value is not None and name_of(value) == state for value in made.values)
        }

    # -- what a variable is

    def _is_in_state(self, name: str) -> bool:
        """Whether it is the run's own, or an attribute of an object from the state."""
        root, dot, _ = name.partition(".")
        return bool(dot) and (root == self._run or self._comes_from_run(root, set()))

    def _comes_from_run(self, name: str, seen: set[str]) -> bool:
        """Whether it is made from state or messages, directly or indirectly."""
        if name in seen or name not in self._made:
            return False
        seen.add(name)
        for value in filter(None, self._made[name].values):
            if self._looks_at_run(value):
                return True
            if any(self._comes_from_run(one, seen) for one in loads_in(value)):
                return True
        return False

    def _looks_at_run(self, value: ast.expr) -> bool:
        kept = {f"{self._run}.{what}" for what in _KEPT}
        for node in ast.walk(value):
            if name_of(node) in kept:
                return True
            # A helper that is given the run may read them.
            if isinstance(node, ast.Call) and self._is_given(node, self._run):
                return True
        return False

    def _is_given(self, call: ast.Call, name: str) -> bool:
        return any(name_of(one) == name for one in _given_to(call))

    def _is_container(self, name: str, seen: set[str]) -> bool:
        if name in seen or name not in self._made:
            return False
        seen.add(name)
        return any(self._is_display(value, seen) for value in self._made[name].values)

    def _is_display(self, value: ast.expr | None, seen: set[str]) -> bool:
        match value:
            case ast.BinOp(left=left, right=right):
                return self._is_display(left, seen) or self._is_display(right, seen)
            case ast.IfExp(body=left, orelse=right):
                return self._is_display(left, seen) or self._is_display(right, seen)
            case ast.BoolOp(values=values):
                return any(self._is_display(one, seen) for one in values)
            case ast.Call(func=function):
                return (name_of(function) or "").rpartition(".")[2] in _CONTAINERS
            case ast.Name(id=name):
                return self._is_container(name, seen)
        return isinstance(value, DISPLAYS)

    # -- what becomes of it in the loop

    def _is_saved(self, name: str) -> bool:
        """Whether it is put into the state in the loop, or need not be: a value from the messages,
        or indirectly from the state, may be either."""
        values = [value for value in self._made[name].values if value is not None]
        if not any(
            name_of(node) == f"{self._run}.state" for value in values for node in ast.walk(value)
        ):
            return True
        return self._is_put_into_state(self._states(), name)

    def _turn_nodes(self) -> Iterator[ast.AST]:
        """The nodes of the loop, and of the agent's functions that it uses."""
        return ast.walk(ast.Module([self._loop, *self._turn.helpers], []))

    def _may_be_saved(self, name: str) -> bool:
        """Whether the loop changes anything that may be in the state: that may be the same value,
        such as an item that is added to both."""
        if self._is_saved(name):
            return True
        states = self._states()
        for node in self._turn_nodes():
            match node:
                case ast.Subscript(value=base, ctx=ast.Store() | ast.Del()):
                    if root_of(base) in states:
                        return True
                case ast.Attribute(ctx=ast.Store()) if name_of(node) in states:
                    return True
                case ast.Call(func=ast.Attribute(value=receiver, attr=attr)) if attr in MUTATORS:
                    if root_of(receiver) in states:
                        return True
                case ast.Call():
                    names = {one for value in _given_to(node) for one in _objects_in(value)}
                    if names & {self._run, *states}:
                        return True
        others = self._turn.changes.keys() - {name}
        return any(self._comes_from_run(one, set()) for one in others)

    def _is_copy(self, name: str) -> bool:
        """Whether it is certainly another object than the one in the state."""
        return all(
            isinstance(value, ast.ListComp | ast.SetComp | ast.DictComp)
            or (isinstance(value, ast.Call) and name_of(value.func) in _CONTAINERS)
            for value in self._made[name].values
        )

    def _is_put_into_state(self, states: set[str], name: str) -> bool:
        for node in self._turn_nodes():
            match node:
                case ast.Assign(targets=targets, value=value):
                    into = {root_of(one) for target in targets for one in _parts(target)}
                case ast.AugAssign(target=target, value=value):
                    into = {root_of(target)}
                case ast.Call(func=ast.Attribute(value=receiver)):
                    into, value = {root_of(receiver)}, node
                case _:
                    continue
            if into & states and name in loads_in(value):
                return True
        return any(
            isinstance(node, ast.Call)
            and self._is_given(node, self._run)
            and self._is_given(node, name)
            for node in ast.walk(self._loop)
        )

    def _is_made_anew(self, name: str, values: list[ast.expr | None]) -> bool:
        """Whether it looks like a connection, which is made again where it is needed."""
        before = self._made[name].values
        if not values or any(self._is_recorded(value) for value in values):
            return False
        made = {ast.dump(value.func) for value in [*before, *values] if isinstance(value, ast.Call)}
        are_calls = all(isinstance(_awaited(value), ast.Call) for value in values)
        was = [_awaited(value) for value in before]
        is_none = all(isinstance(value, ast.Constant) and value.value is None for value in was)
        is_same = len(made) == 1 and all(isinstance(value, ast.Call) for value in was)
        return are_calls and (is_none or is_same)

    def _is_recorded(self, value: ast.expr | None) -> bool:
        return value is None or any(
            (name_of(node) or "").startswith(f"{self._run}.") for node in ast.walk(value)
        )


def _awaited(value: ast.expr | None) -> ast.expr | None:
    return value.value if isinstance(value, ast.Await) else value


def _given_to(call: ast.Call) -> list[ast.expr]:
    """The arguments of a call, by position and by name."""
    return [*call.args, *(one.value for one in call.keywords)]


def _objects_in(value: ast.expr) -> Iterator[str]:
    """The variables whose objects a value is, or has in it."""
    match value:
        case ast.Dict(values=inside) | ast.List(elts=inside) | ast.Tuple(elts=inside):
            for one in inside:
                yield from _objects_in(one)
        case _ if name := name_of(value):
            yield name


def _parts(target: ast.expr) -> list[ast.expr]:
    """The targets of an assignment: of ``a, b = ...``, both."""
    return target.elts if isinstance(target, ast.Tuple | ast.List) else [target]
