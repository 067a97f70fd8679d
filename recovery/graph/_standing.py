"""Where a run of a graph stands, made of what its visits have recorded. Pure.

A visit is recorded as one entry, which is the outcome of its call and a message of the run: by
reference, so it is in the log once. All that a run of a graph is can be made of its entries:
nothing of it grows in a checkpoint, however many nodes have been visited.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Any

from eventlog._dataclass import dataclass

START = "(start)"  # where the edge to the first node comes from
END = "(end)"  # a node that names it as the next one is the last of its branch
ARROW, JUMP = " -> ", " => "  # along an edge of the graph; to a node that a node has named


@dataclass(slots=True)
class Standing:
    """What the nodes have written, where they went, and what is to be visited next.

    ``memory``: values by key. ``path``: the nodes visited, in order; ``visits`` counts them by
    node, ``retries`` what of that was tried again, ``failed`` names nodes that failed and were
    gone on from. ``pending``: the edges by which nodes to be visited were reached, and how often.
    """

    memory: dict[str, Any] = field(default_factory=dict)
    path: list[str] = field(default_factory=list)
    visits: dict[str, int] = field(default_factory=dict)
    retries: dict[str, int] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)
    pending: dict[str, dict[str, int]] = field(default_factory=dict)

    @classmethod
    def of(cls, first: str, given: Mapping[str, Any], entries: Iterable[Any]) -> Standing:
        """That of a run that began at node ``first`` with ``given`` in its memory."""
        standing = cls(dict(given))
        standing._arrive(START, [first], ARROW)
        for entry in entries:
            standing.take(entry)
        return standing

    def take(self, entry: Mapping[str, Any]) -> None:
        """A visit has ended.

        It takes those edges by which its node was reached before it began: of nodes that ran side
        by side one may have led to the other meanwhile.
        """
        node = entry["node"]
        left = self.pending[node]
        for edge in entry["via"]:
            left[edge] -= 1
            if not left[edge]:
                del left[edge]
        if not left:
            del self.pending[node]
        if entry.get("dropped"):
            return
        self.path.append(node)
        self.visits[node] = self.visits.get(node, 0) + 1
        self.memory.update(entry.get("output", {}))
        tries = entry.get("attempts", 1)
        if tries > 1:
            self.retries[node] = self.retries.get(node, 0) + tries - 1
        if "error" in entry and node not in self.failed:
            self.failed.append(node)
        self._arrive(node, entry["next"], JUMP if entry.get("jump") else ARROW)

    def via(self, node: str) -> list[str]:
        """The edges by which a node that is to be visited was reached."""
        return [edge for edge, times in self.pending[node].items() for _ in range(times)]

    def _arrive(self, source: str, targets: Iterable[str], arrow: str) -> None:
        for target in targets:
            reached = self.pending.setdefault(target, {})
            edge = f"{source}{arrow}{target}"
            reached[edge] = reached.get(edge, 0) + 1


def sources(via: Iterable[str]) -> list[str]:
    """The nodes from which these edges come."""
    return [edge.rpartition(JUMP if JUMP in edge else ARROW)[0] for edge in via]
