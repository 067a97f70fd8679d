"""Finds what one turn of a loop does to variables that were made before it. Pure."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
Loop = ast.For | ast.AsyncFor | ast.While
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)

# Methods of lists, dicts, sets and deques that change them in place.
MUTATORS = {
    "append",
    "extend",
    "insert",
    "add",
    "update",
    "pop",
    "popitem",
    "popleft",
    "appendleft",
    "extendleft",
    "remove",
    "discard",
    "clear",
    "setdefault",
    "sort",
    "reverse",
    "rotate",
    "subtract",
    "move_to_end",
    "difference_update",
    "intersection_update",
    "symmetric_difference_update",
}

DISPLAYS = (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp)


def name_of(node: ast.AST) -> str | None:
    """``x`` and ``x.y`` as text; None for anything else."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=ast.Name(id=name), attr=attribute):
            return f"{name}.{attribute}"
    return None


def loads_in(node: ast.AST) -> Iterator[str]:
    """The names that an expression reads, except those that it binds itself."""
    made = {
        name
        for part in ast.walk(node)
        if isinstance(part, ast.comprehension)
        for one in ast.walk(part.target)
        if (name := name_of(one))
    }
    for part in ast.walk(node):
        if isinstance(part, ast.Name | ast.Attribute) and isinstance(part.ctx, ast.Load):
            name = name_of(part)
            if name is not None and name not in made:
                yield name


def functions_in(function: FunctionNode) -> dict[str, FunctionNode]:
    """The functions that a function defines, by name."""
    return {
        node.name: node
        for node in ast.walk(function)
        if isinstance(node, _FUNCTIONS) and node is not function
    }


@dataclass(slots=True)
class Change:
    """Of a variable: the first line, whether it got another value, and the changed attribute."""

    line: int
    rebound: bool = False
    values: list[ast.expr | None] = field(default_factory=list)
    in_call: bool = False


# The variables that have a value of this turn, at a point; None where the point is unreachable.
Fresh = set[str] | None


def _both(one: Fresh, other: Fresh) -> Fresh:
    if one is None or other is None:
        return other if one is None else one
    return one & other


class Turn:
    """One turn: ``changes`` of variables, and which of these are ``read`` with a value of an
    earlier turn. ``helpers``: functions of the agent that are used in it.

    ``after``: what is read after the loop, which is reached by ``break``.
    """

    def __init__(self, loop: Loop, functions: dict[str, FunctionNode], after: set[str]) -> None:
        self.changes: dict[str, Change] = {}
        self.read: set[str] = set()
        self.helpers: list[FunctionNode] = []
        self._functions, self._after = functions, after
        self._breaks: list[list[Fresh]] = []  # of the loops inside
        fresh: set[str] = set()
        if isinstance(loop, ast.While):  # which may end by its condition
            self._look(loop.test, fresh)
            self.read |= set() if isinstance(loop.test, ast.Constant) else after
        else:
            self._assign(loop.target, None, fresh)
        self._block(loop.body, fresh)

    # -- statements

    def _block(self, body: list[ast.stmt], fresh: Fresh) -> Fresh:
        for statement in body:
            if fresh is None:
                return None
            fresh = self._statement(statement, fresh)
        return fresh

    def _statement(self, node: ast.stmt, fresh: set[str]) -> Fresh:
        match node:
            case ast.Assign() | ast.AnnAssign() | ast.AugAssign() | ast.Delete():
                self._assignment(node, fresh)
            case ast.Expr(
                value=ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="clear"))
            ):
                fresh.add(name)
            case ast.Expr(value=value):
                self._look(value, fresh, alone=True)
            case ast.Break() | ast.Continue() | ast.Return() | ast.Raise():
                self._jump(node, fresh)
                return None
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self._functions = self._functions | {node.name: node}
                fresh.add(node.name)
            case ast.ClassDef():
                fresh.add(node.name)
            case _:
                return self._compound(node, fresh)
        return fresh

    def _assignment(
        self, node: ast.Assign | ast.AnnAssign | ast.AugAssign | ast.Delete, fresh: set[str]
    ) -> None:
        match node:
            case ast.Assign(targets=targets, value=value):
                self._look(value, fresh)
                for target in targets:
                    self._assign(target, value, fresh)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                self._look(value, fresh)
                self._assign(target, value, fresh)
            case ast.AugAssign(target=target, value=value):
                self._look(value, fresh)
                self._augment(target, value, fresh)
            case ast.Delete(targets=targets):
                for target in targets:
                    self._assign(target, None, fresh)

    def _jump(self, node: ast.stmt, fresh: set[str]) -> None:
        if not isinstance(node, ast.Break):
            self._look(node, fresh)
        elif self._breaks:
            self._breaks[-1].append(fresh)
        else:
            self.read |= self._after - fresh

    def _compound(self, node: ast.stmt, fresh: set[str]) -> Fresh:
        match node:
            case ast.If(test=test):
                self._look(test, fresh)
                return _both(self._block(node.body, {*fresh}), self._block(node.orelse, {*fresh}))
            case ast.For() | ast.AsyncFor():
                self._look(node.iter, fresh)
                inside = {*fresh}
                self._assign(node.target, None, inside)
                return self._inner(node, inside, fresh)
            case ast.While(test=test):
                self._look(test, fresh)
                is_endless = isinstance(test, ast.Constant) and bool(test.value)
                return self._inner(node, {*fresh}, None if is_endless else fresh)
            case ast.With() | ast.AsyncWith():
                for item in node.items:
                    self._look(item.context_expr, fresh)
                    if item.optional_vars is not None:
                        self._assign(item.optional_vars, None, fresh)
                return self._block(node.body, fresh)
            case ast.Try() | ast.TryStar():
                ended = self._block([*node.body, *node.orelse], {*fresh})
                for handler in node.handlers:
                    ended = _both(ended, self._block(handler.body, {*fresh}))
                self._block(node.finalbody, {*fresh})
                return ended
            case ast.Match(subject=subject):
                self._look(subject, fresh)
                ended = None
                for case in node.cases:
                    ended = _both(ended, self._block(case.body, {*fresh}))
                is_last = any(
                    isinstance(case.pattern, ast.MatchAs)
                    and case.pattern.pattern is None
                    and case.guard is None
                    for case in node.cases
                )
                return ended if is_last else _both(ended, fresh)
            case _:
                self._look(node, fresh)
                return fresh

    def _inner(self, node: Loop, inside: set[str], ended: Fresh) -> Fresh:
        """A loop inside; ``ended``: what is fresh when it ends by itself, None if it never does."""
        self._breaks.append([])
        self._block(node.body, inside)
        breaks = self._breaks.pop()
        if ended is not None:
            ended = self._block(node.orelse, {*ended})
        for one in breaks:
            ended = _both(ended, one)
        return ended

    # -- expressions

    def _look(self, node: ast.AST, fresh: set[str], alone: bool = False) -> None:
        """Names that are read, and changes by methods. ``alone``: the expression is a statement."""
        called = node.value if isinstance(node, ast.Await) else node
        receivers: set[int] = set()
        for part in ast.walk(node):
            if not isinstance(part, ast.Call) or not isinstance(part.func, ast.Attribute):
                continue
            if part.func.attr in MUTATORS and (base := root_of(part.func.value)):
                self._change(base, part.lineno, fresh)
                if part is called and alone and name_of(part.func.value):
                    receivers |= {id(one) for one in ast.walk(part.func)}
        unseen = [part for part in ast.walk(node) if id(part) not in receivers]
        known = {*loads_in(node)}
        for part in unseen:
            name = name_of(part)
            if name not in known:
                continue
            assert name is not None
            if name in self._functions:
                self._use(name, node, fresh)
            elif name not in fresh:
                self.read.add(name)
        for part in unseen:
            if isinstance(part, ast.NamedExpr):
                self._assign(part.target, part.value, fresh)

    def _assign(self, target: ast.expr, value: ast.expr | None, fresh: set[str]) -> None:
        match target:
            case ast.Tuple(elts=targets) | ast.List(elts=targets):
                for one in targets:
                    self._assign(one, None, fresh)
            case ast.Starred(value=one):
                self._assign(one, None, fresh)
            case ast.Subscript(value=base, slice=index):
                self._look(index, fresh)
                if name := root_of(base):
                    self._change(name, target.lineno, fresh)
            case _ if name := name_of(target):
                change = self._change(name, target.lineno, fresh)
                if change is not None:
                    change.rebound = True
                    change.values.append(value)
                fresh.add(name)

    def _augment(self, target: ast.expr, value: ast.expr, fresh: set[str]) -> None:
        """``x += 1``: a new value, made of the old one. A list or set is changed in place."""
        if isinstance(target, ast.Subscript):
            self._assign(target, None, fresh)
        elif name := name_of(target):
            change = self._change(name, target.lineno, fresh)
            if change is not None and not isinstance(value, DISPLAYS):
                change.rebound = True
                change.values.append(None)

    def _change(self, name: str, line: int, fresh: set[str]) -> Change | None:
        if name in fresh:
            return None
        return self.changes.setdefault(name, Change(line))

    # -- functions of the agent

    def _use(self, name: str, node: ast.AST, fresh: set[str]) -> None:
        """The agent's own function is called here, or passed on."""
        function = self._functions[name]
        if function in self.helpers:
            return
        self.helpers.append(function)
        own = bound_in(function)
        known = {*self.changes}
        # Code in a tool, or in an argument of run.call, does not run again on replay.
        is_called = any(
            isinstance(part, ast.Call) and name_of(part.func) == name for part in ast.walk(node)
        )
        breaks, self._breaks = self._breaks, [[]]
        after, self._after = self._after, set()
        self._block(function.body, {*fresh, *own})
        self._breaks, self._after = breaks, after
        for changed in self.changes.keys() - known:
            self.changes[changed].in_call = bool(function.decorator_list) or not is_called


def own_nodes(function: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a function, without those of the functions that it defines."""
    for child in ast.iter_child_nodes(function):
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield child
            yield from own_nodes(child)


def bound_in(function: FunctionNode) -> set[str]:
    """The variables that are a function's own."""
    arguments = function.args
    given = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    bound, other = {one.arg for one in given}, set[str]()
    for node in own_nodes(function):
        match node:
            case ast.Name(id=name, ctx=ast.Store()):
                bound.add(name)
            case ast.Nonlocal(names=names) | ast.Global(names=names):
                other.update(names)
    return bound - other


def root_of(target: ast.AST) -> str | None:
    """The root name of an expression: ``run.state`` of ``run.state["a"]["b"]``."""
    while isinstance(target, ast.Subscript):
        target = target.value
    return name_of(target)
