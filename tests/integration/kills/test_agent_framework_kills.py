"""Agents of the Agent Framework end as if nobody had killed them, killed at each append.

Compared are all messages, the history of the session, usage, each request as the model got it and
as the log has it, and the effects outside. Left out: the id of the session (random in each run).
Ids that the framework draws (``af-call-...``) are numbered by their order in a request.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("agent_framework")

from tests.support import agent_framework_shop as shop
from tests.support.framework_lives import kills, survives


@kills(2)
@pytest.mark.parametrize("ask", [shop.plainly, shop.streamed], ids=lambda one: one.__name__)
def test_an_agent_survives_kills(ask: Any, points: int, tmp_path: Path, rng: random.Random) -> None:
    survives(shop.live(ask), tmp_path, rng, points, appends=41)
