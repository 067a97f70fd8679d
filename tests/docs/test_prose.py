"""The prose of the README and the docs: short sentences, short lines, the field's words."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from tests.docs.test_parameters import FOR_USERS
from tests.support.paths import ROOT

WORDS_MAX, LINE_MAX = 25, 100
WORDS_OF_ALL_MAX = 40_000  # README and docs, counted as `wc -w` does
# Words of a private language: they name no actor, or the field has another word for the thing.
PRIVATE = (
    r"nobody|somebody|whoever|anew|of which|what of it|in clear|under way|in front of|behind|"
    r"is told|told of|(?:goes|go|going|went|gone) on|(?:stands?|stood|standing) still|"
    r"(?:comes|come|came) upon|(?:given|give|gives|gave) up|(?:takes?|taken|took) (?:it )?up|"
    r"settle[sd]?|settling|cut short"
)
ENDS = r"(?<=[.!?])[)\"*]*\s+|\n\s*\n|\n\s*(?:[-*]|\d+\.) "  # of sentences, paragraphs, items
# Findings on the pages that are still to be rewritten. The numbers may only shrink.
LEFT = {"docs/benchmarks.md": 61}
DOCSTRINGS_LEFT = ("recovery.integrations.hive.",)
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def findings(text: str) -> list[str]:
    """Words, lines and sentences to rewrite; code counts as one word, a link by its text."""
    text = re.sub(r"^```.*?^```$|<!--.*?-->", "", text, flags=re.S | re.M)
    text = re.sub(r"\]\([^)]*\)", "]", re.sub(r"`[^`]*`", "`x`", text))
    words = re.findall(rf"\b(?:{PRIVATE})\b", " ".join(text.split()), re.I)
    found = [f"private word: {word}" for word in words]
    lines = [line for line in text.splitlines() if not line.lstrip().startswith(("|", "#", "!["))]
    found += [f"long line: {line}" for line in lines if len(line) > LINE_MAX]
    for sentence in re.split(ENDS, "\n".join(lines)):
        if len(re.findall(r"[A-Za-z][\w'-]*", sentence)) > WORDS_MAX:
            found.append("long sentence: " + " ".join(sentence.split()))
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_has_short_sentences_and_the_words_of_the_field(page: Path) -> None:
    found = findings(page.read_text(encoding="utf-8"))
    assert len(found) <= LEFT.get(page.relative_to(ROOT).as_posix(), 0), "\n".join(found)


def test_readers_are_given_at_most_so_many_words() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    made = "benchmarks.md"  # from figures
    words = {page: len(page.read_text("utf-8").split()) for page in pages if page.name != made}
    assert len(words) > 60
    assert sum(words.values()) <= WORDS_OF_ALL_MAX, "say each thing once, and link"


def test_docstrings_that_users_see_have_short_sentences() -> None:
    found = [
        f"{name}: {finding}"
        for name, called in FOR_USERS.items()
        if not name.startswith(DOCSTRINGS_LEFT)
        for finding in findings(prose_of(called))
        if not finding.startswith("long line")
    ]
    assert found == []


def prose_of(called: Any) -> str:
    """A docstring as Markdown; errors after "Raises", and arguments, are items of a list."""
    text = (inspect.getdoc(called) or "").replace("``", "`")
    text = re.sub(r"^ *\*{0,2}(?=\w+: )|^ +\*\*", "\n- ", text, flags=re.M)
    return re.sub(
        r"(?:Raises|nothing was removed:)[^.]*", lambda m: m[0].replace("; ", ".\n\n"), text
    )


def test_each_rule_has_a_finding() -> None:
    long = "This is a sentence of words " * 5
    assert [one.split(":")[0] for one in findings(f"Nobody.\n{long}.")] == [
        "private word",
        "long line",
        "long sentence",
    ]
    assert findings("`nobody`\n```\nnobody\n```\n| table | " + long) == []
