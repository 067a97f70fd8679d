"""The blocks of code on a page of the documentation, and how they are run."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from tests.support.paths import ROOT


def page_text(page: str) -> str:
    """``page`` is a name in docs/, or README.md."""
    folder = ROOT if page == "README.md" else ROOT / "docs"
    return (folder / page).read_text(encoding="utf-8")


def blocks(page: str, kind: str = "python") -> list[str]:
    """What stands in the page's blocks of one kind, in order."""
    return re.findall(rf"```{kind}\n(.*?)```", page_text(page), re.DOTALL)


def run_page(page: str, codes: Iterable[str], names: dict[str, Any]) -> dict[str, Any]:
    """Run the codes one after the other, as one module with these names; returns the names."""
    for code in codes:
        exec(compile(code, page, "exec", dont_inherit=True), names)  # noqa: S102 - our own page
    return names
