"""What a node sees, and what it gives."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from recovery.agent.run import Run


class NodeFailedError(Exception):
    """What a visit failed with whose node said so (NodeResult), or gave what cannot be used."""


@dataclass(slots=True)
class NodeResult:
    """What a node may give in place of a dict.

    ``next_node``: where to go, whatever the edges say (END: nowhere). Without ``success``, the
    visit has failed with ``error``, and ``output`` is not written.
    """

    success: bool = True
    output: Mapping[str, Any] = field(default_factory=dict)
    error: str | None = None
    next_node: str | None = None


class Memory(Mapping[str, Any]):
    """What the nodes of a run have written, by key: shared by all of them.

    A value that is read is a copy: write it again if you change it. What is written counts when
    the visit has succeeded. Nodes that run at the same time do not see each other's writes; of
    those to the same key that of the node which was added to the graph last counts.
    """

    __slots__ = ("_known", "written")

    def __init__(self, known: Mapping[str, Any], written: dict[str, Any] | None = None) -> None:
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
        """The value of a key."""
        return self.get(key, default)

    def write(self, key: str, value: Any) -> None:
        """Set the value of a key."""
        self.written[key] = value

    def read_all(self) -> dict[str, Any]:
        """All of it, copied."""
        return {key: self[key] for key in self}


@dataclass(frozen=True, slots=True, eq=False)
class NodeContext:
    """A visit, as its node sees it.

    ``memory`` is shared by the nodes; ``goal`` and ``input_data`` are those of the run. ``visit``
    counts the visits of this node, ``attempt`` those to make this one, from 1. ``via``: the edges
    by which it was reached ("a -> b"). ``answer``: the value of the signal for which a pause node
    waited. ``runtime``: as the executor was given it.
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
        """Call a function, sync (in a thread) or async, as a recorded call; see ``Run.call``.

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
