"""Agents of the OpenAI Agents SDK end as if nobody had killed them, killed at each append.

Compared are all items and messages, the bodies of all requests (those that the SDK made, those that
reached the model, and those that the log has), the usage, and the effects outside. No field is left
out. What the fake model draws (ids of messages and responses, times) is the same each time.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("agents")

from tests.support import openai_agents_shop as shop
from tests.support.framework_lives import kills, survives

AGENTS = [shop.plainly, shop.streamed, shop.chats]


@kills(2)
@pytest.mark.parametrize("agent", AGENTS, ids=lambda one: one.__name__)
def test_an_agent_that_is_killed_ends_like_one_that_is_not(
    agent: Any, points: int, tmp_path: Path, rng: random.Random
) -> None:
    survives(shop.live(agent), tmp_path, rng, points, appends=41)
