"""Whether a package is installed, for tests that start processes which import it."""

from __future__ import annotations

from importlib.util import find_spec

import pytest


def skip_without(package: str) -> None:
    """Skip the module where a package is not installed. Importing a framework takes seconds, in
    each process of the suite."""
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed", allow_module_level=True)
