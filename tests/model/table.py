"""Which fault hit which feature of a program, how often."""

from __future__ import annotations

from collections import Counter

EFFECTS = {"die before effect", "die after effect", "a second process"}
BY_THE_CLOCK = {"die in time", "a stop"}
IMPOSSIBLE = (  # features, faults, and why the ones cannot hit the others
    ({"no call", "taking it up"}, EFFECTS, "what is done outside is done in a call"),
    ({"people"}, EFFECTS | BY_THE_CLOCK, "people act between two turns of the event loop"),
    ({"prologue"}, {"damage"}, "there is no checkpoint yet"),
    ({"taking it up"}, BY_THE_CLOCK, "it takes no time"),
)


def impossible(feature: str, fault: str) -> str:
    """Why this fault cannot hit this feature; "" if it can."""
    found = (why for features, faults, why in IMPOSSIBLE if feature in features and fault in faults)
    return next(found, "")


def table_lines(table: Counter[tuple[str, str]]) -> list[str]:
    """The table in Markdown: a line for each feature, and why some fields are empty."""
    faults, features = _heads(table)
    lines = ["| under way | " + " | ".join(faults) + " |", "|---" * (len(faults) + 1) + "|"]
    for feature in features:
        fields = ("" if impossible(feature, one) else str(table[feature, one]) for one in faults)
        lines.append(f"| {feature} | " + " | ".join(fields) + " |")
    lines.append("")
    for empty, by, why in IMPOSSIBLE:
        lines.append(f"- {', '.join(sorted(empty))}, and {', '.join(sorted(by))}: {why}")
    return lines


def zeros(table: Counter[tuple[str, str]]) -> list[tuple[str, str]]:
    """Pairs that were never hit, though they can be."""
    faults, features = _heads(table)
    pairs = [(feature, fault) for feature in features for fault in faults]
    return [pair for pair in pairs if not table[pair] and not impossible(*pair)]


def _heads(table: Counter[tuple[str, str]]) -> tuple[list[str], list[str]]:
    return sorted({fault for _, fault in table}), sorted({feature for feature, _ in table})
