"""Warns of code in an agent's source whose order may differ on replay, when it first runs.

The log does not record how long an ``asyncio.sleep`` of the agent took, when one of its time-outs
expired, or in which order a set gives finished tasks. Code that depends on one of these may do
something else on replay. Then its run stops, although its code has not changed.
"""

from __future__ import annotations

import ast
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from types import CodeType, FunctionType
from typing import Any

from recovery.agent_code.code_digest import codes_in, functions_of, named_in, reached
from recovery.agent_code.loop_variables import own_nodes
from recovery.agent_code.parsed_source import parsed_source

_logger = logging.getLogger("recovery")

FUNCTIONS_MAX, SHOWN_MAX, DEPTH_MAX = 100, 5, 4
_LIBRARIES = {"asyncio", "anyio"}
_BESIDE = {
    "create_task",
    "gather",
    "TaskGroup",
    "create_task_group",
    "ensure_future",
    "start_soon",
    "as_completed",
}
_CLOCKS = {
    "timeout",
    "timeout_at",
    "wait_for",
    "move_on_after",
    "move_on_at",
    "fail_after",
    "fail_at",
}
_TELLING = _CLOCKS | {"wait", "sleep", "as_completed"}
_TASKS = {
    "create_task",
    "ensure_future",
    "Task",
    "submit",
    "run_in_executor",
    "wrap_future",
    "run_coroutine_threadsafe",
}
_GATES = {
    "Semaphore",
    "BoundedSemaphore",
    "Lock",
    "Condition",
    "Queue",
    "LifoQueue",
    "PriorityQueue",
    "CapacityLimiter",
}
_COPIES = {"list", "tuple", "set", "frozenset"}
_QUEUES = {
    "append",
    "appendleft",
    "extend",
    "insert",
    "put",
    "put_nowait",
    "send",
    "send_nowait",
    "set_result",
    "set_exception",
}
_LOOPS = (ast.While, ast.For, ast.AsyncFor)

_SET = "asyncio.wait gives sets, which have no order: `run.wait(...)` gives lists, and is recorded"
_CLOCK = "the clock of {} is not recorded: `@tool(timeout_s=...)` and `run.wait(timeout=...)` are"
_TICK = (
    "asyncio.sleep beside other tasks, in a loop: how often it comes round is not recorded; "
    "`run.sleep(...)` is"
)
_ORDER = (
    "asyncio.sleep at the end of a task, beside asyncio.as_completed: who ends first is not "
    "recorded; `run.sleep(...)` and `run.wait(...)` are"
)
_SHARED = (
    "asyncio.sleep in a task, before `{}`: which of the tasks comes first is not recorded; "
    "`run.sleep(...)` is, and so is the order of calls"
)
_GATE = (
    "asyncio.sleep before `async with`: who is let in first is not recorded; enter first, or "
    "use `run.sleep(...)`"
)

_STARTED = (
    "asyncio.as_completed starts coroutines in the order of a set, which differs between "
    "processes, so they reach the lock, semaphore or queue in that order; make them tasks first: "
    "`[asyncio.create_task(one) for one in ...]`"
)

_examined: set[CodeType] = set()  # agent functions of this process that were examined


@dataclass(frozen=True, slots=True)
class Race:
    """A line of the agent's code, and what is not recorded there."""

    file: str
    line: int
    why: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.why}"


def warn_of_races(agent_fn: Callable[..., Any]) -> None:
    """Log a warning of what may come in another order on replay, once for each agent function."""
    function = next(functions_of(agent_fn), None)
    if function is None or (code := function.__code__) in _examined:
        return
    _examined.add(code)
    found = races_of(agent_fn)
    if found:
        more = f"\n  and {len(found) - SHOWN_MAX} more" if len(found) > SHOWN_MAX else ""
        _logger.warning(
            "agent %s: after a crash this code may do things in another order than it did. Then "
            "its run stops with a DivergenceError.%s%s",
            code.co_name,
            "".join(f"\n  {race}" for race in found[:SHOWN_MAX]),
            more,
        )


def races_of(agent_fn: Callable[..., Any]) -> list[Race]:
    """The races of an agent function, and of the functions that it refers to."""
    functions = list(islice(reached(agent_fn), FUNCTIONS_MAX))
    if not any(_TELLING & {*code.co_names} for one in functions for code in codes_in(one.__code__)):
        return []  # reading the source would take time
    sources = map(_Source.of, functions)
    known = [one for one in sources if one is not None]
    used = {_last_name(node) for one in known for node in _calls(one.tree)}
    found = {race for one in known for race in one.races(bool(used & _BESIDE))}
    tasks = {name for one in known for name in one.tasks()}
    found |= {race for one in known for race in one.late_sleeps(tasks, "as_completed" in used)}
    if "as_completed" in used and any(one.has_gate() for one in known):
        found |= {race for one in known for race in one.started_in_any_order()}
    return sorted(found, key=lambda race: (race.file, race.line))


@dataclass(eq=False, slots=True)
class _Source:
    """The source of a function, and its global names."""

    function: FunctionType
    tree: ast.AST
    names: dict[str, Any]

    @classmethod
    def of(cls, function: FunctionType) -> _Source | None:
        tree = parsed_source(function.__code__, function.__globals__.get("__name__"))
        return None if tree is None else cls(function, tree, dict(named_in(function)))

    def races(self, beside: bool) -> Iterator[Race]:
        """``beside``: whether the agent has concurrent tasks."""
        dropped = {
            id(one.value.value)
            for one in ast.walk(self.tree)
            if isinstance(one, ast.Expr) and isinstance(one.value, ast.Await)
        }
        for call in _calls(self.tree):
            name = _last_name(call)
            if not self._is_of_a_library(call.func):
                continue
            if name == "wait" and id(call) not in dropped:
                yield self._race(call, _SET)
            elif name in _CLOCKS:
                yield self._race(call, _CLOCK.format(ast.unparse(call.func)))
        for function in ast.walk(self.tree) if beside else ():
            if isinstance(function, ast.AsyncFunctionDef) and self._makes_calls(function):
                yield from self._sleeps(function)

    def _sleeps(self, function: ast.AsyncFunctionDef) -> Iterator[Race]:
        sleeps = [
            node
            for node in own_nodes(function)
            if isinstance(node, ast.Call) and self._is_sleep(node)
        ]
        for loop in (node for node in own_nodes(function) if isinstance(node, _LOOPS)):
            inside = {id(node) for node in ast.walk(loop)}
            # The end of the loop of steps is recorded.
            if not (isinstance(loop, ast.AsyncFor) and _last_name(loop.iter) == "steps"):
                yield from (self._race(one, _TICK) for one in sleeps if id(one) in inside)
        gates = [
            node.lineno
            for node in own_nodes(function)
            if isinstance(node, ast.AsyncWith)
            and any(isinstance(item.context_expr, ast.Name | ast.Attribute) for item in node.items)
        ]
        for sleep in sleeps:
            if any(sleep.lineno < gate for gate in gates):
                yield self._race(sleep, _GATE)

    def tasks(self) -> Iterator[str]:
        """The names of functions whose coroutines are not awaited where they are created."""
        awaited = {
            id(one.value.func)
            for one in ast.walk(self.tree)
            if isinstance(one, ast.Await) and isinstance(one.value, ast.Call)
        }
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Name | ast.Attribute) and id(node) not in awaited:
                yield node.id if isinstance(node, ast.Name) else node.attr

    def late_sleeps(self, tasks: set[str], ends_count: bool) -> Iterator[Race]:
        """Sleeps in tasks, after which they change what others see before a call is recorded.
        ``ends_count``: others see which task ends first."""
        for function in ast.walk(self.tree):
            if not isinstance(function, ast.AsyncFunctionDef) or function.name not in tasks:
                continue
            nodes = [
                node for node in own_nodes(function) if isinstance(node, ast.expr | ast.AugAssign)
            ]
            # In order of evaluation: inner nodes come first.
            nodes.sort(key=lambda one: (one.end_lineno, one.end_col_offset, -one.col_offset))
            slept: ast.Call | None = None
            for node in nodes:
                shown = self._shown_to_others(node, function) if slept is not None else ""
                if slept is not None and shown:
                    yield self._race(slept, _SHARED.format(shown))
                if isinstance(node, ast.Await):
                    call = node.value
                    slept = call if isinstance(call, ast.Call) and self._is_sleep(call) else None
            if slept is not None and ends_count:
                yield self._race(slept, _ORDER)

    def _shown_to_others(self, node: ast.AST, function: ast.AST) -> str:
        """Its change of an object that other tasks share, as text."""
        own = {
            one.id
            for one in own_nodes(function)
            if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)
        }
        shared = {
            name
            for one in own_nodes(function)
            if isinstance(one, ast.Nonlocal | ast.Global)
            for name in one.names
        }
        match node:
            case ast.AugAssign(target=ast.Name(id=name)) if name in shared:
                return ast.unparse(node)
            case ast.Call(func=ast.Attribute(value=of, attr=name)) if name in _QUEUES:
                root: ast.expr = of
                while isinstance(root, ast.Attribute | ast.Subscript):
                    root = root.value
                is_own = isinstance(root, ast.Name) and root.id in own - shared
                return "" if is_own else ast.unparse(node.func)
        return ""

    def has_gate(self) -> bool:
        """Whether tasks wait for one another here, in order of arrival."""
        return any(
            _last_name(node) in _GATES
            if isinstance(node, ast.Call)
            else isinstance(node, ast.AsyncWith)
            and any(isinstance(item.context_expr, ast.Name | ast.Attribute) for item in node.items)
            for node in ast.walk(self.tree)
        )

    def started_in_any_order(self) -> Iterator[Race]:
        """``asyncio.as_completed`` of coroutines, which are not tasks yet."""
        for call in _calls(self.tree):
            is_it = _last_name(call) == "as_completed" and self._is_of_a_library(call.func)
            if is_it and call.args and self._are_coroutines(call.args[0]):
                yield self._race(call, _STARTED)

    def _are_coroutines(self, value: ast.expr, depth: int = 0) -> bool:
        match value:
            case ast.ListComp(elt=one) | ast.SetComp(elt=one) | ast.GeneratorExp(elt=one):
                return self._is_coroutine(one, depth)
            case ast.List(elts=some) | ast.Tuple(elts=some) | ast.Set(elts=some):
                return any(self._is_coroutine(one, depth) for one in some)
            case ast.Starred(value=one):
                return self._are_coroutines(one, depth)
            case ast.Call(func=ast.Name(id="map"), args=[made, *_]):
                return _last_name(made) not in _TASKS
            case ast.Call(func=ast.Name(id=name), args=[one]) if name in _COPIES:
                return self._are_coroutines(one, depth)
            case ast.Name(id=name) if depth < DEPTH_MAX:
                return any(self._are_coroutines(one, depth + 1) for one in self._values(name))
        return False

    def _is_coroutine(self, value: ast.expr, depth: int) -> bool:
        if isinstance(value, ast.Starred):
            return self._are_coroutines(value.value, depth)
        return isinstance(value, ast.Call) and _last_name(value) not in _TASKS

    def _values(self, name: str) -> Iterator[ast.expr]:
        """The list displays that a variable is built from."""
        for node in ast.walk(self.tree):
            match node:
                case ast.Assign(targets=[ast.Name(id=target)], value=value) if target == name:
                    yield value
                case ast.Call(
                    func=ast.Attribute(value=ast.Name(id=target), attr="append"), args=[one]
                ) if target == name:
                    yield ast.List([one])

    def _makes_calls(self, function: ast.AsyncFunctionDef) -> bool:
        """Whether it uses a run: code that only computes does not matter."""
        return any(
            isinstance(node, ast.Name) and (node.id == "run" or self._is_tool(node.id))
            for node in ast.walk(function)
        )

    def _is_tool(self, name: str) -> bool:
        return hasattr(self.names.get(name), "tool_spec")

    def _is_sleep(self, call: ast.Call) -> bool:
        """Whether it sleeps, itself or as the whole of a helper does."""
        if _last_name(call) == "sleep" and self._is_of_a_library(call.func):
            zero = call.args and isinstance(call.args[0], ast.Constant) and not call.args[0].value
            return not zero
        helper = self.names.get(call.func.id) if isinstance(call.func, ast.Name) else None
        code = getattr(helper, "__code__", None)
        return code is not None and "sleep" in code.co_names and bool(_LIBRARIES & {*code.co_names})

    def _is_of_a_library(self, function: ast.expr) -> bool:
        match function:
            case ast.Attribute(value=ast.Name(id=name)):
                return getattr(self.names.get(name), "__name__", name) in _LIBRARIES
            case ast.Name(id=name):
                module = getattr(self.names.get(name), "__module__", None) or ""
                return module.partition(".")[0] in _LIBRARIES
        return False

    def _race(self, node: ast.expr, why: str) -> Race:
        return Race(self.function.__code__.co_filename, node.lineno, why)


def _calls(tree: ast.AST) -> Iterator[ast.Call]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.Call))


def _last_name(node: ast.AST) -> str:
    function = node.func if isinstance(node, ast.Call) else node
    match function:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
    return ""
