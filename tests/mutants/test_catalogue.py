"""The catalogue of seeded bugs fits the code as it is. `make mutants` tries the bugs."""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from tests.mutants import LAYERS, Mutant

ROOT = Path(__file__).parents[2]
MUTANTS = [mutant for layer in LAYERS.values() for mutant in layer]


@cache
def text_of(path: str) -> str:
    return (ROOT / path).read_text()


def test_names_are_unique() -> None:
    names = Counter(mutant.name for mutant in MUTANTS)
    assert [name for name, times in names.items() if times > 1] == []


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_bug_fits_the_code_and_its_tests_exist(mutant: Mutant) -> None:
    changed: dict[str, str] = {}
    for edit in mutant.edits:
        text = changed.get(edit.file, text_of(edit.file))
        assert text.count(edit.old) == 1, f"{edit.file} does not have once: {edit.old}"
        changed[edit.file] = text.replace(edit.old, edit.new)
    for file, text in changed.items():
        assert text != text_of(file)
        compile(text, file, "exec")
    assert mutant.what.endswith(".") and mutant.tests
    for test in mutant.tests:
        path, _, name = test.partition("[")[0].partition("::")
        assert re.search(rf"^def {name}\(", text_of(f"tests/{path}"), re.M), test
