"""Runs agents of Pydantic AI as recorded runs: ``pip install 'agent-eventlog[pydantic-ai]'``.

    agent = Agent("openai:gpt-5.2", name="shop", tools=[pay], capabilities=[EventLogDurability()])
    shop = recoverable(agent, "runs")
    done = await shop.run_with_recovery("Pay 10 to bob", "order-42")

A resumed run is replayed from its first line. Requests to models, calls of tools and whatever else
the agent does outside are served from the log as far as it has them. See docs/pydantic-ai.md.
"""

from recovery.integrations.versions import check_version

check_version("pydantic-ai-slim", "2.62", extra="pydantic-ai")

from recovery.integrations.pydantic_ai.durability import (  # noqa: E402
    EventLogDurability,
    recoverable,
)
from recovery.integrations.pydantic_ai.policies import ToolPolicy  # noqa: E402

__all__ = ["EventLogDurability", "ToolPolicy", "recoverable"]
