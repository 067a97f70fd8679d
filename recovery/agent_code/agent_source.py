"""Warns of local variables that a resumed run would lose, from an agent function's source."""

from __future__ import annotations

import ast
import functools
import inspect
import logging
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import CodeType, FrameType, FunctionType
from typing import Any

from recovery.agent_code.code_digest import functions_of, named_in
from recovery.agent_code.loop_variables import name_of
from recovery.agent_code.lost_locals import (
    FunctionNode,
    LostLocal,
    has_loop,
    lost_locals,
    may_be_lost,
)
from recovery.agent_code.parsed_source import parsed_source

_logger = logging.getLogger("recovery")

DEPTH_MAX = 4  # of functions that pass the run on
_examined: set[CodeType] = set()  # the functions of this process that were looked at
_named: set[tuple[str, int, str]] = set()  # warnings: file, line of the loop, variable


@dataclass(frozen=True, slots=True)
class LostLocals:
    """The local variables that a resumption of this function would lose."""

    name: str
    file: str
    line: int
    found: tuple[LostLocal, ...]

    def __str__(self) -> str:
        file = self.file.rpartition(os.sep)[2]
        return (
            f"agent {self.name} ({file}:{self.line}): a resumed run would lose "
            f"{', '.join(map(self._shown, self.found))}. A checkpoint holds run.state and "
            "run.messages; local variables are made again by the code before the loop of steps. "
            "Keep such a value in run.state, or take no checkpoints: checkpoint_every_n=None "
            "replays the function from its first line."
        )

    def _shown(self, lost: LostLocal) -> str:
        if lost.how == "beside":
            return (
                f"the place in {lost.name} (line {lost.loop}), which begins again (the step does "
                "not: run.task[step - 1])"
            )
        if lost.how == "in place":
            return (
                f"what is in local variable {lost.name!r} (made before the loop of line "
                f"{lost.loop}, changed in place in it)"
            )
        if lost.how == "apart":
            return (
                f"local variable {lost.name!r} (changed in line {lost.changed}; line {lost.made} "
                "puts it into run.state, which has another object then: take it from there)"
            )
        inside = " by a tool, which is not executed again on replay" if lost.in_call else ""
        return (
            f"local variable {lost.name!r} (made in line {lost.made}, changed in line "
            f"{lost.changed}{inside})"
        )

    def warn(self) -> None:
        """Log the warning, and remember it."""
        _named.update((self.file, one.loop, one.name) for one in self.found)
        _logger.warning("%s (check_locals=False turns this warning off.)", self)


def warn_of_lost_locals(agent_fn: Callable[..., Any]) -> None:
    """Say in the log which local variables would be lost, once for each function of a process."""
    codes = {found.code for found in _functions(agent_fn)}
    if codes <= _examined:
        return
    _examined.update(codes)
    found = locals_lost_by(agent_fn)
    if found is not None:
        found.warn()


def warn_of_changed(frame: FrameType, run: str, line: int, names: Mapping[str, bool]) -> bool:
    """Warn of those of these values that were changed in place in the loop at this line, would be
    lost, and are read by the loop; each once. Returns whether there are any. ``names``: and whether
    the state has them."""
    code = frame.f_code
    node = _definition(code, frame.f_globals.get("__name__"))
    if node is None:
        return False
    is_lost = may_be_lost(node, run)
    said = {one.name for one in lost_locals(node, run)}
    said |= {name for file, loop, name in _named if (file, loop) == (code.co_filename, line)}
    found = tuple(
        LostLocal(name, 0, line, loop=line, how="in place")
        for name, is_in_state in names.items()
        if said.isdisjoint((name, name.partition(".")[0])) and is_lost(name, is_in_state)
    )
    if found:
        LostLocals(code.co_qualname, code.co_filename, node.lineno, found).warn()
    return bool(found)


def locals_lost_by(agent_fn: Callable[..., Any]) -> LostLocals | None:
    """Which local variables a resumption would lose; None if none, or the source is not there."""
    seen: set[CodeType] = set()
    given = len(agent_fn.args) if isinstance(agent_fn, functools.partial) else 0
    to_see = deque((found, given, 0) for found in _functions(agent_fn))
    while to_see:
        found, at, depth = to_see.popleft()
        node = _definition(found.code, found.function.__globals__.get("__name__"))
        run = None if node is None or found.code in seen else _parameter(node, at)
        seen.add(found.code)
        if node is None or run is None:
            continue
        if has_loop(node, run):
            name, lost = found.function.__qualname__, lost_locals(node, run)
            file = found.code.co_filename
            return LostLocals(name, file, node.lineno, lost) if lost else None
        if depth < DEPTH_MAX:
            to_see += [(one, where, depth + 1) for one, where in _passed_on(found, node, run)]
    return None


@dataclass(frozen=True, slots=True)
class _Function:
    """A function, and the class of the object whose method it is."""

    function: FunctionType
    owner: type | None

    @property
    def code(self) -> CodeType:
        return self.function.__code__


def _functions(agent_fn: Any) -> Iterator[_Function]:
    """The functions that an agent consists of, and those that a decorator puts around it."""
    owner = _owner_of(agent_fn)
    for function in functions_of(agent_fn):
        yield _Function(function, owner)
        for cell in function.__closure__ or ():
            try:
                inner = cell.cell_contents
            except ValueError:  # not assigned yet
                continue
            found = getattr(inner, "__func__", inner)
            if isinstance(found, FunctionType):
                yield _Function(found, owner if found is inner else type(inner.__self__))


def _owner_of(agent_fn: Any) -> type | None:
    """The class of the object that it is, or is a method of."""
    while isinstance(agent_fn, functools.partial):
        agent_fn = agent_fn.func
    if inspect.ismethod(agent_fn):
        return type(agent_fn.__self__)
    return None if isinstance(agent_fn, FunctionType | type) else type(agent_fn)


def _definition(code: CodeType, module: str | None) -> FunctionNode | None:
    tree = parsed_source(code, module)
    node = tree.body[0] if tree is not None and tree.body else None
    return node if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else None


def _parameter(node: FunctionNode, at: int) -> str | None:
    """The name of parameter number ``at``, without the object of a method."""
    names = [one.arg for one in (*node.args.posonlyargs, *node.args.args)]
    names = names[names[:1] in (["self"], ["cls"]) :]
    return names[at] if at < len(names) else None


def _passed_on(found: _Function, node: FunctionNode, run: str) -> Iterator[tuple[_Function, int]]:
    """The functions that it passes the run to, and the numbers of the parameters."""
    known = dict(named_in(found.function))
    for call in ast.walk(node):
        given = [name_of(one) for one in call.args] if isinstance(call, ast.Call) else []
        if run not in given:
            continue
        match call:
            case ast.Call(func=ast.Name(id=name)):
                called = known.get(name)
            case ast.Call(func=ast.Attribute(value=ast.Name(id="self"), attr=name)):
                called = getattr(found.owner, name, None)
            case _:
                continue
        for one in _functions(called):
            yield _Function(one.function, one.owner or found.owner), given.index(run)
