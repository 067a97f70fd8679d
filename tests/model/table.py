"""Which fault hit which feature of a program, how often."""

from __future__ import annotations

from collections import Counter


def table_lines(table: Counter[tuple[str, str]]) -> list[str]:
    """The table in Markdown: a line for each feature."""
    faults = sorted({fault for _, fault in table})
    features = sorted({feature for feature, _ in table})
    lines = ["| under way | " + " | ".join(faults) + " |", "|---" * (len(faults) + 1) + "|"]
    return lines + [
        f"| {feature} | " + " | ".join(str(table[feature, fault]) for fault in faults) + " |"
        for feature in features
    ]
