"""Defines a node's interface: its context, its memory, and its result."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from recovery.agent.run import Run


class NodeFailedError(Exception):
    """The failure of a visit whose node reported it (NodeResult), or returned an unusable value."""


@dataclass(slots=True)
class NodeResult:
    """A result that a node may return in place of a dict.

    ``next_node``: the next node, in place of the edges' (END: none). Without ``success``, the visit
    has failed with ``error``, and ``output`` is not written.
    """

    success: bool = True
    output: Mapping[str, Any] = field(default_factory=dict)
    error: str | None = None
    next_node: str | None = None


class Memory(Mapping[str, Any]):
    """The values that the nodes of a run have written, by key: shared by all of them.

    A value that is read is a copy: write it again if you change it. Writes take effect when the
    visit has succeeded. Nodes that run at the same time do not see each other's writes; if they
    write the same key, the node that was added to the graph last wins.
    """

    __slots__ = ("_known", "written")

    def __init__(self, known: Mapping[str, Any], written: dict[str, Any] | None = None) -> None:
        """Not for users: nodes are given it."""
        self._known = known
        self.written: dict[str, Any] = {} if written is None else written

    def __getitem__(self, key: str) -> Any:
        return deepcopy((self.written if key in self.written else self._known)[key])

    def __setitem__(self, key: str, value: Any) -> None:
        self.written[key] = value

    def __iter__(self) -> Iterator[str]:
        yield from self._known
        yield from (key for key in self.written if key not in self._known)

    def __len__(self) -> int:
        return len(self._known) + sum(key not in self._known for key in self.written)

    def read(self, key: str, default: Any = None) -> Any:
        """The value of ``key``; ``default`` (None) if there is none."""
        return self.get(key, default)

    def write(self, key: str, value: Any) -> None:
        """Set the value of ``key`` to ``value``."""
        self.written[key] = value

    def read_all(self) -> dict[str, Any]:
        """A copy of all values."""
        return {key: self[key] for key in self}


@dataclass(frozen=True, slots=True, eq=False)
class NodeContext:
    """A visit, as its node sees it.

    ``memory`` is shared by the nodes; ``goal`` and ``input_data`` are those of the run. ``visit``
    counts the visits of this node, ``attempt`` the attempts at this visit, from 1. ``via``: the
    edges by which it was reached ("a -> b"). ``answer``: the value of the signal for which a pause
    node waited. ``runtime``: the executor's.
    """

    run_id: str
    node_id: str
    goal: Any
    input_data: dict[str, Any]
    memory: Memory
    visit: int
    attempt: int
    via: tuple[str, ...]
    answer: Any
    runtime: Any
    _run: Run

    async def call(
        self, function: Callable[..., Any], /, *args: Any, call_id: str = "", **kwargs: Any
    ) -> Any:
        """Call ``function``, sync (in a thread) or async, as a recorded call; see ``Run.call``.

        A node that is a plain function calls tools directly.
        """
        return await self._run.call(function, *args, call_id=call_id, **kwargs)

    def now(self) -> float:
        """Seconds since 1970; recorded, as the other two are."""
        return self._run.now()

    def random(self) -> float:
        """A random number in [0, 1)."""
        return self._run.random()

    def uuid(self) -> str:
        """A new UUID."""
        return self._run.uuid()
