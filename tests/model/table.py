"""Which fault hit which feature of a program, how often."""

from __future__ import annotations

from collections import Counter

EFFECTS = {"die before effect", "die after effect", "a second process"}
OUTSIDE_OF_CALLS = {"people", "no call", "sleep", "wait_for", "undo", "approval"}


def table_lines(table: Counter[tuple[str, str]]) -> list[str]:
    """The table in Markdown: a line for each feature."""
    faults = sorted({fault for _, fault in table})
    features = sorted({feature for feature, _ in table})
    lines = ["| under way | " + " | ".join(faults) + " |", "|---" * (len(faults) + 1) + "|"]
    return lines + [
        f"| {feature} | " + " | ".join(str(table[feature, fault]) for fault in faults) + " |"
        for feature in features
    ]


def zeros(table: Counter[tuple[str, str]]) -> list[tuple[str, str]]:
    """Pairs that were never hit, though they can be: nothing is done outside while nothing but
    these is under way."""
    faults = {fault for _, fault in table}
    features = {feature for feature, _ in table}
    return [
        (feature, fault)
        for feature in sorted(features)
        for fault in sorted(faults)
        if not table[feature, fault] and not (feature in OUTSIDE_OF_CALLS and fault in EFFECTS)
    ]
