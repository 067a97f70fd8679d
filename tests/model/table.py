"""Which fault hit which feature of a program, how often."""

from __future__ import annotations

from collections import Counter

FAULTS = (
    "a second process",
    "a stop",
    "damage",
    "die after effect",
    "die at disk call",
    "die before effect",
    "die in time",
    "disk error",
    "nobody there",
    "power loss",
)
FEATURES = (
    "approval",
    "calls in a side effect",
    "can be undone",
    "child",
    "nested calls",
    "no call",
    "node",
    "people",
    "prologue",
    "recovery",
    "retry",
    "several calls",
    "sleep",
    "stream",
    "sync",
    "taking it up",
    "timeout",
    "tool: park",
    "tool: reconcile",
    "tool: report",
    "tool: retry",
    "undo",
    "wait_for",
)
IN_PROGRAMS = [
    one
    for one in FEATURES
    if one not in ("no call", "people", "prologue", "recovery", "taking it up")
]
EFFECTS = {"die before effect", "die after effect", "a second process"}
BY_THE_CLOCK = {"die in time", "a stop"}
IMPOSSIBLE = (  # features, faults, and why the ones cannot hit the others
    ({"no call", "taking it up"}, EFFECTS, "what is done outside is done in a call"),
    ({"people"}, EFFECTS | BY_THE_CLOCK, "people act between two turns of the event loop"),
    ({"prologue"}, {"damage"}, "there is no checkpoint yet"),
    ({"taking it up"}, BY_THE_CLOCK, "it takes no time"),
    ({"node"}, {"a stop"}, "a graph is stopped by nobody but its executor's task"),
)


def impossible(feature: str, fault: str) -> str:
    """Why this fault cannot hit this feature; "" if it can."""
    found = (why for features, faults, why in IMPOSSIBLE if feature in features and fault in faults)
    return next(found, "")


def least(table: Counter[tuple[str, str]], feature: str) -> int:
    """How often the feature was hit by the fault that has hit it least."""
    return min(table[feature, fault] for fault in FAULTS if not impossible(feature, fault))


def table_lines(table: Counter[tuple[str, str]]) -> list[str]:
    """The table in Markdown: a line for each feature, and why some fields are empty."""
    lines = ["| under way | " + " | ".join(FAULTS) + " |", "|---" * (len(FAULTS) + 1) + "|"]
    for feature in FEATURES:
        fields = ("" if impossible(feature, one) else str(table[feature, one]) for one in FAULTS)
        lines.append(f"| {feature} | " + " | ".join(fields) + " |")
    lines.append("")
    for empty, by, why in IMPOSSIBLE:
        lines.append(f"- {', '.join(sorted(empty))}, and {', '.join(sorted(by))}: {why}")
    return lines


def zeros(table: Counter[tuple[str, str]]) -> list[tuple[str, str]]:
    """Pairs that were never hit, though they can be."""
    pairs = [(feature, fault) for feature in FEATURES for fault in FAULTS]
    return [pair for pair in pairs if not table[pair] and not impossible(*pair)]
