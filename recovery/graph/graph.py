"""Provides Graph: nodes that do the work, and the edges between them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, Literal, TypedDict, TypeVar, Unpack, overload

from recovery.declare.retry import Retry
from recovery.declare.spec import ToolSpec, is_generator, spec_of
from recovery.declare.tool import tool
from recovery.errors import ApprovalDeniedError, PermanentError, RecoveryError, ToolError
from recovery.graph.node import NodeFailedError
from recovery.graph.state import ARROW, END, JUMP, START
from recovery.option_checks import check_count, check_errors, check_names, check_takes
from recovery.replay import recorded_call
from recovery.stores.protocol import SIGNAL_NAME_MAX

W = TypeVar("W")

When = Literal["on_success", "on_failure", "always"] | Callable[[Any, Any], Any]
VISITS_MAX = 100


class NodeOptions(TypedDict, total=False):
    """See Graph.node."""

    join: bool
    pause: bool
    retry: Retry | int
    max_visits: int
    after_crash: Literal["retry", "park"]
    timeout_s: float
    raises: Sequence[type[Exception]]
    needs_approval: bool
    approval_timeout_s: float


# The work of the visit that is made in this context.
making: ContextVar[Callable[[], Awaitable[Any]]] = ContextVar("making")


async def make_visit(number: int, via: list[str], attempt: int = 0) -> Any:
    """The recorded call of a visit: one function for all visits, so that it is examined once, and
    holds no reference to a run.

    ``attempt``: given in runs of the first rules, where each attempt is a call of its own.
    """
    return await making.get()()


RESOLVED_AS_FAILED = "resolved as failed"  # the ToolError of a call that was resolved as failed


def is_final(error: Exception) -> bool:
    """Whether another attempt would change nothing: a person, or the node itself, decided so."""
    return isinstance(error, ApprovalDeniedError | PermanentError) or (
        # In runs of the first rules, a recorded failure is a ToolError with the name of its type.
        isinstance(error, ToolError)
        and (error.type_name == RESOLVED_AS_FAILED or recorded_call.is_final(error.type_name))
    )


def _but_final(retry: Retry) -> Retry:
    """The same, for errors that are not final."""
    return replace(retry, on=lambda exc: not is_final(exc) and retry.again(exc, 0))


@dataclass(frozen=True, slots=True)
class Node:
    """A node of a graph: its ``name``, ``work``, ``options`` and ``retry``, and the ``spec`` of the
    tool that records its visits."""

    name: str
    work: Any
    options: NodeOptions
    spec: ToolSpec
    retry: Retry | None

    @classmethod
    def of(cls, name: str, work: Any, options: NodeOptions) -> Node:
        """Not for users: from a user's options; ValueError and TypeError for wrong ones."""
        given: dict[str, Any] = {
            key: value
            for key, value in options.items()
            if key in ("after_crash", "timeout_s", "needs_approval", "approval_timeout_s")
        }
        given.setdefault("after_crash", "retry")
        retry = Retry.of(options.get("retry"))
        if retry is not None:
            given["retry"] = _but_final(retry)
        given["raises"] = (NodeFailedError, *check_errors("raises=", options.get("raises", ())))
        if "max_visits" in options:
            check_count("max_visits", options["max_visits"])
        spec = spec_of(tool(name=f"node {name}", **given)(make_visit))
        return cls(name, work, options, spec, retry)


@dataclass(frozen=True, slots=True)
class Edge:
    """An edge of a graph: its ``source``, its ``target``, and ``when`` it is taken."""

    source: str
    target: str
    when: When

    def __str__(self) -> str:
        return f"{self.source}{ARROW}{self.target}"


class GraphError(RecoveryError):
    """The graph is not one that can be executed. Nothing was executed."""


class Graph:
    """Nodes and the edges between them, to be executed by a GraphExecutor.

    ``name`` is recorded: a run is resumed with a graph of the same name. The first node that is
    added is where execution begins, unless ``start`` names another. ``max_visits``: how often each
    node may be visited in a run, so that a loop comes to an end.
    """

    def __init__(self, name: str, *, start: str = "", max_visits: int = VISITS_MAX) -> None:
        if not isinstance(name, str):
            raise TypeError(f"the name of a graph is text, not {name!r:.80}")
        check_count("max_visits", max_visits)
        self.name, self._start, self.max_visits = name, start, max_visits
        self.nodes: dict[str, Node] = {}
        self.edges: list[Edge] = []
        self._from: dict[str, list[Edge]] = {}
        self._into: dict[str, dict[str, None]] = {}
        self._places: dict[str, int] = {}

    @property
    def start(self) -> str:
        """The node where execution begins."""
        return self._start or next(iter(self.nodes), "")

    @overload
    def node(self, name: str, /, **options: Unpack[NodeOptions]) -> Callable[[W], W]: ...

    @overload
    def node(self, name: str, work: W, /, **options: Unpack[NodeOptions]) -> W: ...

    def node(self, name: str, work: Any = None, /, **options: Unpack[NodeOptions]) -> Any:
        """Add a node; without ``work``, a decorator that does.

        ``work``: a function of a NodeContext, async or plain (in a thread), or an object with such
        a method ``execute``. It returns a dict of the values to write to the memory, a NodeResult
        or None. Any other value is written under the node's name.

        ``options``, each by name. ``join``: it waits for all nodes from which edges lead to it, or
        until no other node is left. Other nodes run as soon as one edge has led to them. ``pause``:
        before it runs, it waits for signal NAME to the run (``RunHandle.signal``); the value is its
        ``answer``. ``retry``: for failures, a Retry or the number of attempts. The function runs
        again, and calls that returned are served to it, as for tools. ``max_visits``: how often it
        may be visited in a run, the graph's bound by default. ``after_crash``: the policy for a
        visit that a crash interrupted. "retry" is the default: it runs again, and the tools that
        it has called are served from the log. "park" is for one with effects that are no tools.
        ``timeout_s``, ``raises``, ``needs_approval``, ``approval_timeout_s``: as for tools.
        """
        if work is None:

            def decorate(work: W) -> W:
                self.node(name, work, **options)
                return work

            return decorate
        if not name or name in (START, END) or ARROW in name or JUMP in name:
            raise GraphError(f"{name!r} cannot be the name of a node")
        if len(name) > SIGNAL_NAME_MAX:
            raise GraphError(f"the name of a node has at most {SIGNAL_NAME_MAX} characters")
        if name in self.nodes:
            raise GraphError(f"graph {self.name!r} has a node {name!r} already")
        if not callable(function_of(work)) or is_generator(function_of(work)):
            raise GraphError(f"node {name!r}: a function or an object with execute(), not {work!r}")
        check_takes(f"node {name!r}", function_of(work), ("context",))
        check_names(f"node {name!r}", options, NodeOptions.__annotations__)
        if options.get("after_crash", "retry") not in ("retry", "park"):
            raise ValueError(
                f'node {name!r}: after_crash is "retry" or "park", not {options["after_crash"]!r}'
            )
        node = Node.of(name, work, options)
        self._places[name] = len(self.nodes)
        self.nodes[name] = node
        return work

    def edge(self, source: str, target: str, when: When = "on_success") -> None:
        """Add an edge from node ``source`` to node ``target``, which may be added later.

        All edges of a node that are to be taken are taken, at the same time.

        ``when``: "on_success", "on_failure" (the node failed, and its retries are used up) or
        "always". Or a function, async or plain, of the node's output (a dict) and the memory, which
        is called when the node has succeeded. Its answer is recorded with the visit: it is never
        called again.
        """
        if not callable(when) and when not in ("on_success", "on_failure", "always"):
            raise GraphError(
                f'when= is "on_success", "on_failure", "always" or a function, not {when!r}'
            )
        edge = Edge(source, target, when)
        if callable(when):
            check_takes(f"when= of edge {edge}", when, ("output", "memory"))
        self.edges.append(edge)
        self._from.setdefault(source, []).append(edge)
        self._into.setdefault(target, {})[source] = None

    def edges_from(self, node: str) -> list[Edge]:
        """The edges that leave ``node``, in the order in which they were added."""
        return self._from.get(node, [])

    def sources_of(self, node: str) -> set[str]:
        """The nodes from which edges lead to ``node``."""
        return {*self._into.get(node, ())}

    def leads(self, source: str, target: str) -> bool:
        """Whether an edge leads from ``source`` to ``target``."""
        return source in self._into.get(target, ())

    def place(self, node: str) -> int:
        """The index of ``node``, in the order in which they were added."""
        return self._places[node]

    def ahead(self, node: str) -> set[str]:
        """The nodes that can be reached from ``node`` by edges."""
        found: set[str] = set()
        left = [node]
        while left:
            new = {edge.target for edge in self.edges_from(left.pop())} - found
            found |= new
            left += new
        return found

    def after_failure(self, node: str) -> list[str]:
        """The nodes with which a run continues when ``node`` has failed; empty: it does not."""
        edges = (edge for edge in self.edges_from(node) if edge.when in ("on_failure", "always"))
        return list(dict.fromkeys(edge.target for edge in edges))

    def check(self) -> None:
        """GraphError if an edge leads from or to a missing node, or there is no start."""
        if self.start not in self.nodes:
            raise GraphError(f"graph {self.name!r} has no node {self.start!r} to start with")
        for edge in self.edges:
            for end in (edge.source, edge.target):
                if end not in self.nodes:
                    raise GraphError(f"edge {edge} of graph {self.name!r}: no node {end!r}")


def function_of(work: Any) -> Any:
    """The function of a node's work: its method ``execute``, or itself."""
    execute = getattr(work, "execute", None)
    return execute if callable(execute) else work
