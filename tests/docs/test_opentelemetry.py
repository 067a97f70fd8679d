"""The code in docs/opentelemetry.md runs, and the page has each option and the revision."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SpanExportResult

from recovery import tracing
from recovery.tracing import SpanOptions
from tests.support.pages import blocks, page_text, run_page

PAGE = "opentelemetry.md"
TEXT = page_text(PAGE)


def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exported: list[str] = []

    def export(self: Any, spans: Any) -> SpanExportResult:
        exported.extend(span.name for span in spans)
        return SpanExportResult.SUCCESS

    monkeypatch.setattr(ConsoleSpanExporter, "export", export)
    names: dict[str, Any] = {"__name__": "__main__"}
    (tree,) = blocks(PAGE, "text")
    try:
        run_page(PAGE, blocks(PAGE), names)
    finally:
        names["spans"].stop()
    names["provider"].shutdown()
    first, *others = tree.splitlines()
    assert exported == [line.strip() for line in (*others, first)]


def test_every_option_and_the_revision_are_on_the_page() -> None:
    for one in fields(SpanOptions):
        assert f"`{one.name}=" in TEXT, one.name
    assert f"`{tracing.REVISION}`" in TEXT
