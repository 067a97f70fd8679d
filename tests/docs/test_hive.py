"""docs/hive.md tells of all that is public; integration/kills/test_hive_kills runs its programs."""

from __future__ import annotations

from recovery.integrations import hive
from tests.support.hive.kills import BLOCKS, PAGE
from tests.support.pages import blocks, page_text


def test_each_block_of_the_page_is_run() -> None:
    run = {0} | {at for first, others in BLOCKS.values() for at in (first, *others)}
    assert run == set(range(len(blocks(PAGE))))


def test_every_public_name_is_told_of_and_has_a_docstring() -> None:
    text = page_text(PAGE)
    for name in hive.__all__:
        assert name in text, name
        assert getattr(hive, name).__doc__, name
