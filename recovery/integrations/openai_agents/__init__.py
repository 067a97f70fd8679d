"""Agents of the OpenAI Agents SDK, recorded: ``pip install 'agent-eventlog[openai-agents]'``.

    from recovery.integrations.openai_agents import Runner

    async def support(run):
        result = await Runner.run(triage, run.task)
        return result.final_output

    agent = RecoverableAgent(support, CheckpointStore("runs"))

A run that a crash has interrupted starts again from its first line; what was recorded is served.
``@tool`` below ``@function_tool`` says what is to happen to a call in doubt. See
docs/openai-agents.md.
"""

from recovery.integrations.versions import check_version

check_version("openai-agents", "0.20")

from recovery.integrations.openai_agents.recorded_agents import recorded  # noqa: E402
from recovery.integrations.openai_agents.runner import Runner  # noqa: E402

__all__ = ["Runner", "recorded"]
