"""docs/guarantees.md, security.md and tests/ownership/README.md name tests, and each is there."""

from __future__ import annotations

import re

import pytest

from eventlog.format import frame, json_values
from recovery.history import restore_checkpoint
from recovery.values import builtin_codecs, codec
from tests.support.paths import ROOT

PAGE = (ROOT / "docs" / "guarantees.md").read_text()
OWNERSHIP = (ROOT / "tests" / "ownership" / "README.md").read_text()
SECURITY = (ROOT / "docs" / "security.md").read_text()


def named(page: str) -> set[tuple[str, str]]:
    """Files, and functions in them ("" for a file as a whole), that a page names as tests."""
    page = page.replace("`hostile::", "`tests/unit/eventlog/format/test_hostile_logs.py::")
    page = page.replace("`trust::", "`tests/contract/test_trust.py::")
    return set(re.findall(r"`(tests/[\w/]+\.py)(?:::(test_\w+))?`", page))


@pytest.mark.parametrize(
    "page", [PAGE, SECURITY, OWNERSHIP], ids=["guarantees", "security", "ownership"]
)
def test_every_test_that_a_page_names_exists(page: str) -> None:
    assert len(named(page)) > 7
    for file, function in named(page):
        assert (ROOT / file).is_file(), file
        text = (ROOT / file).read_text()
        assert not function or f"def {function}(" in text, f"{file}::{function}"


def test_every_limit_that_the_security_page_names_has_the_value_that_it_says() -> None:
    limits = dict(re.findall(r"`([A-Z_]+_MAX)` ([0-9][^|;.,]*)", SECURITY))
    said = {name: text.strip() for name, text in limits.items()}
    assert said == {
        "PAYLOAD_SIZE_MAX": "64 MiB",
        "FILE_SIZE_MAX": "1 GiB + 128 MiB",
        "LSN_MAX": "2^63 - 1",
        "EPOCH_MAX": "2^48 - 1",
        "NUMBER_MAX": "2^32 - 1",
        "JSON_DEPTH_MAX": "200 in dumps",
        "BASES_MAX": "64",
        "ALIKE_MAX": "64 with one hash",
        "LEVELS_MAX": "64 inside one another",
        "FRACTION_SIZE_MAX": "1024 bytes",
    }
    assert (frame.PAYLOAD_SIZE_MAX, frame.FILE_SIZE_MAX) == (64 << 20, (1 << 30) + (128 << 20))
    assert (frame.LSN_MAX, frame.EPOCH_MAX) == ((1 << 63) - 1, (1 << 48) - 1)
    assert (frame.NUMBER_MAX, json_values.JSON_DEPTH_MAX) == ((1 << 32) - 1, 200)
    assert restore_checkpoint.BASES_MAX == 64
    assert (codec.ALIKE_MAX, codec.LEVELS_MAX, builtin_codecs.FRACTION_SIZE_MAX) == (64, 64, 1024)


def test_every_guarantee_names_tests() -> None:
    sections = re.split(r"^## ", PAGE, flags=re.M)
    guarantees = [section for section in sections if re.match(r"G\d ", section)]
    assert [section[:2] for section in guarantees] == [f"G{i}" for i in range(1, 9)]
    assert all(re.search(r"^Tests:\s+(- )?`tests/", one, re.M) for one in guarantees)
