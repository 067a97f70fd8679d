"""The programs of docs/google-adk.md run."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.support.pages import blocks, page_text, run_page

pytest.importorskip("google.adk")

import recovery.integrations.google_adk as integration

PAGE = "google-adk.md"


def test_the_page_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names = run_page(PAGE, blocks(PAGE), {"__name__": "__main__"})
    (said,) = blocks(PAGE, "text")
    assert capsys.readouterr().out == said

    has = "Ann has the money."
    assert asyncio.run(names["seller"].run_with_recovery("Go", "seller"))["result"] == has
    streaming = integration.recoverable(names["streaming_app"], "runs")
    assert asyncio.run(streaming.run_with_recovery("Go", "streaming"))["result"] == has


def test_every_public_name_is_on_the_page() -> None:
    text = page_text(PAGE)
    for name in integration.__all__:
        assert f"`{name}" in text or f"{name}(" in text, name
        assert getattr(integration, name).__doc__
