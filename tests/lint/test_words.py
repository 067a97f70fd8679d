"""The words of the code: a module says what it does, and a sentence names its actor.

A private word hides who acts ("nobody", "is told") or stands for a term of the field: resume,
retry, abort, after, in flight, unencrypted. Names of the public interface keep their words.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.paths import ROOT

WORDS = re.compile(
    r"\b(nobody|somebody|anybody|whoever|anew|in clear|in front of|under way|takes? \w+ up again"
    r"|(is|are|was|were|be|been|being) told|(stand|stands|standing|stood) still"
    r"|(give|gives|given|giving|gave) (\w+ )?up|(go|goes|going|went|gone) on)\b",
    re.IGNORECASE,
)
QUESTION = re.compile(r"(What|How|Which|Where|When|Whose|Who)\b")
SENTENCE_MIN = 4  # words; a shorter string is data, such as the state "under way"


def pieces(source: str) -> Iterator[tuple[int, str]]:
    """Comments, docstrings and sentences, each with its line."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            # Quoted text, such as a state or the name of a field, is not prose.
            prose = re.sub(r"``[^`]*``|\"[^\"]*\"", "", node.value)
            if len(prose.split()) >= SENTENCE_MIN:
                yield node.lineno, prose


def found(path: Path) -> list[str]:
    source = path.read_text()
    hits = [
        f"line {line}: {hit[0]!r}"
        for line, text in pieces(source)
        for hit in WORDS.finditer(" ".join(text.split()))
    ]
    doc = ast.get_docstring(ast.parse(source)) or ""
    return hits + (
        [f"the module's docstring begins with {doc[:20]!r}"] if QUESTION.match(doc) else []
    )


def files(room: str) -> list[Path]:
    return sorted((ROOT / room).rglob("*.py"))


DONE = [path for package in ("eventlog", "recovery", "tools/logdump") for path in files(package)]


@pytest.mark.parametrize("path", DONE, ids=lambda path: str(path.relative_to(ROOT)))
def test_words_are_those_of_the_field(path: Path) -> None:
    assert found(path) == []


def test_private_words_are_found(tmp_path: Path) -> None:
    file = tmp_path / "module.py"
    file.write_text('"""What it is."""\nx = "under way"  # goes on, and nobody knows\n')
    hits = found(file)
    assert [hit.partition(": ")[0] for hit in hits[:2]] == ["line 2", "line 2"] and len(hits) == 3
