"""Computes the state of a graph's run from the recorded entries of its visits. Pure.

A visit is recorded as one entry, which is the outcome of its call and a message of the run: by
reference, so it is in the log once. The entries determine the whole state of the run, so a
checkpoint does not grow with the number of visited nodes. A loop overwrites most of its values:
then one entry with the present state replaces all others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

START = "(start)"  # the source of the edge to the first node
END = "(end)"
"""A node that names it as the next one is the last of its branch."""

ARROW, JUMP = " -> ", " => "  # along an edge of the graph; to a node that a node has named


@dataclass(slots=True)
class GraphState:
    """The memory of a graph's run, its path, and the nodes that are visited next.

    ``memory``: values by key. ``path``: the nodes visited, in order; ``visits`` counts them by
    node, ``retries`` counts their retries, ``failed`` names nodes that failed and were followed by
    an edge. ``pending``: the edges by which nodes to be visited were reached, and how often.
    ``not_made``: nodes that were to be visited, and are not: the graph was changed since.
    """

    memory: dict[str, Any] = field(default_factory=dict)
    path: list[str] = field(default_factory=list)
    visits: dict[str, int] = field(default_factory=dict)
    retries: dict[str, int] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)
    pending: dict[str, dict[str, int]] = field(default_factory=dict)
    not_made: list[str] = field(default_factory=list)

    @classmethod
    def from_messages(cls, start: str, given: Mapping[str, Any], entries: Sequence[Any]) -> Self:
        """The state of a run that began with ``given`` in its memory; at node ``start``, if it has
        no entries yet."""
        first: Mapping[str, Any] = entries[0] if entries else {"node": start}
        if "memory" in first:
            state = cls(
                dict(first["memory"]),
                list(first["path"]),
                dict(first["visits"]),
                dict(first["retries"]),
                list(first["failed"]),
                {node: dict(via) for node, via in first["pending"].items()},
                list(first.get("not_made", ())),
            )
        else:
            state = cls(dict(given))
            state._arrive(START, [first["node"]], ARROW)
        for entry in entries["memory" in first :]:
            state.take(entry)
        return state

    def entry(self) -> dict[str, Any]:
        """The entry that replaces all others."""
        return {
            "memory": self.memory,
            "path": self.path,
            "visits": self.visits,
            "retries": self.retries,
            "failed": self.failed,
            "pending": self.pending,
            "not_made": self.not_made,
        }

    def take(self, entry: Mapping[str, Any]) -> None:
        """Take in the entry of a visit that has ended.

        The visit uses up those edges by which its node was reached before it began: meanwhile a
        parallel node may have led to it again.
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
            self._arrive(entry.get("source", ""), entry["next"], ARROW)
            self.not_made += [] if entry["next"] or node in self.not_made else [node]
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
