"""Finds where two texts differ, word by word, with some context. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import SequenceMatcher
from itertools import pairwise

WORDS_MAX = 600  # of a stretch that is compared word by word; a longer one differs as a whole
SHOWN_MAX = 240  # characters of a stretch that differs; the middle of a longer one is left out
CONTEXT = 32  # characters of equal text that are shown on either side
STRETCHES_MAX = 8
DOTS = "..."

_WORD = re.compile(r"\w+|\s+|[^\w\s]")

Piece = tuple[str, bool]  # text, and whether it is only in this one


def pieces(a: str, b: str) -> tuple[list[Piece], list[Piece]]:
    """Both texts, in pieces that they share and pieces that they do not."""
    head = _same(a, b)
    while head and not _is_between(a, b, head):
        head -= 1
    tail = _same(a[head:][::-1], b[head:][::-1])
    while tail and not _is_between(a, b, -tail):
        tail -= 1
    middle_a, middle_b = a[head : len(a) - tail], b[head : len(b) - tail]
    stretches = _stretches(middle_a, middle_b)
    one, other = (
        _cut(_joined([(text[:head], False), *stretch, (text[len(text) - tail :], False)]))
        for text, stretch in zip((a, b), zip(*stretches, strict=True), strict=True)
    )
    return one, other


def _same(a: str, b: str) -> int:
    """The length of the common beginning of the two."""
    low, high = 0, min(len(a), len(b))
    while low < high:  # slices are compared at the speed of memory
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _is_between(a: str, b: str, at: int) -> bool:
    """Whether no word of either text crosses this position."""
    return not any(
        before.isalnum() and after.isalnum()
        for text in (a, b)
        for before, after in [(text[at - 1 : at if at else None], text[at : at + 1 or None])]
        if before and after
    )


def _stretches(a: str, b: str) -> list[tuple[Piece, Piece]]:
    words = _WORD.findall(a), _WORD.findall(b)
    if max(map(len, words)) > WORDS_MAX:
        return [((a, True), (b, True))]
    matcher = SequenceMatcher(None, *words, autojunk=False)
    return [
        (("".join(words[0][i:j]), tag != "equal"), ("".join(words[1][k:m]), tag != "equal"))
        for tag, i, j, k, m in matcher.get_opcodes()
    ] or [(("", False), ("", False))]


def _joined(found: list[Piece]) -> list[Piece]:
    """Merges equal neighbours; an empty piece remains only where the other text has more."""
    joined: list[Piece] = []
    for text, differs in found:
        if joined and joined[-1][1] == differs:
            joined[-1] = joined[-1][0] + text, differs
        elif text or differs:
            joined.append((text, differs))
    return joined


def _cut(found: list[Piece]) -> list[Piece]:
    shown = list(_shortened(found))
    most = 2 * STRETCHES_MAX + 1
    return shown if len(shown) <= most else [*shown[:most], (DOTS, False)]


def _shortened(found: list[Piece]) -> Iterator[Piece]:
    padded: list[Piece | None] = [None, *found, None]
    for i, (before, piece) in enumerate(pairwise(padded[:-1])):
        assert piece is not None
        text, differs = piece
        if differs:
            half = SHOWN_MAX // 2
            yield (text if len(text) <= SHOWN_MAX else f"{text[:half]}{DOTS}{text[-half:]}"), True
            continue
        start = text[:CONTEXT] if before else ""
        end = text[-CONTEXT:] if padded[i + 2] else ""
        whole = len(text) <= len(start) + len(end) + len(DOTS)
        yield (text if whole else f"{start}{DOTS}{end}"), False
