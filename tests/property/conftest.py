"""All tests in this directory belong to `make crash`, which makes many more examples of them.

Hypothesis marks those that are decorated with `given`; most of ours have it inside.
"""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)  # before tests are chosen by their marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.hypothesis)
