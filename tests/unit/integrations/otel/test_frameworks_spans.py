"""A framework that makes spans itself: where ours are left out, each call has one."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from recovery import RecoverableAgent
from recovery.integrations.otel import SpanOptions, instrument
from tests.support.told_spans import Collected, provider_of

pydantic_ai = pytest.importorskip("pydantic_ai")


def test_pydantic_ais_spans_are_inside_the_run(tmp_path: Path) -> None:
    from pydantic_ai import Agent, InstrumentationSettings
    from pydantic_ai.capabilities import Instrumentation
    from pydantic_ai.models.test import TestModel

    from recovery.integrations.pydantic_ai import EventLogDurability, recoverable

    told = Collected()
    provider = provider_of(told)
    settings = InstrumentationSettings(tracer_provider=provider)
    agent = Agent(
        TestModel(),
        name="shop",
        capabilities=[EventLogDurability(), Instrumentation(settings)],
    )

    @agent.tool_plain
    def price(what: str) -> int:
        return len(what)

    source = instrument(provider, SpanOptions(without=["*"]))
    try:
        made: Any = recoverable(agent, tmp_path)
        assert isinstance(made, RecoverableAgent)
        asyncio.run(made.run_with_recovery("what does it cost?", "order"))
    finally:
        source.stop()
    ours = told.of_runs()
    theirs = [span for span in told.spans if span not in ours]
    operations = Counter(span["attributes"].get("gen_ai.operation.name") for span in theirs)
    assert operations["chat"] == 2 and operations["execute_tool"] == 1
    assert {span["attributes"].get("gen_ai.operation.name") for span in ours} <= {
        "invoke_agent",
        None,
    }
    assert len({span["trace"] for span in told.spans}) == 1
    (run,) = (span for span in ours if span["name"].startswith("invoke_agent"))
    assert any(span["parent"] == run["id"] for span in theirs)
