"""Agents of Google's ADK end as if nobody had killed them, killed at each append.

Compared are all events of the session, its state, usage, each request as the model got it and as
the log has it, and the effects outside. Left out: ``id``, ``timestamp`` and ``invocation_id`` of
events. Ids of calls (``adk-...``) are numbered in the order of the session.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("google.adk")

from tests.support import google_adk_shop as shop
from tests.support.framework_lives import kills, survives


@kills(2)
@pytest.mark.parametrize("live", [shop.plainly, shop.streamed])
def test_an_agent_survives_kills(
    live: Any, points: int, tmp_path: Path, rng: random.Random
) -> None:
    survives(live, tmp_path, rng, points, appends=41)
