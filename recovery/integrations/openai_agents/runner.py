"""The SDK's Runner, inside a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import agents
from agents import RunState

from recovery import current_run
from recovery.integrations.framework_calls import async_run
from recovery.integrations.openai_agents.models import SERVER_HELD
from recovery.integrations.openai_agents.recorded_agents import (
    is_recorded,
    recorded,
    recorded_config,
)
from recovery.integrations.openai_agents.sessions import recorded_session

if TYPE_CHECKING:
    from agents import Agent, RunResult, RunResultStreaming


class Runner:
    """``agents.Runner``, whose runs are recorded: in place of it, with the same methods.

    Inside a run of a RecoverableAgent each reply of a model, each call of a tool or an MCP server,
    and what is read from and written to a session is recorded, and served when the run is made
    again. Outside of one it does what ``agents.Runner`` does. ``starting_agent``, ``input``,
    ``*args`` and ``**options`` are those of ``agents.Runner``.
    """

    @classmethod
    async def run(cls, starting_agent: Agent[Any], input: Any, **options: Any) -> RunResult:
        """Run an agent; see ``agents.Runner.run``.

        ValueError for ``conversation_id``, for a session that a server holds or that asks a model,
        and for a RunState whose agents are not recorded. TypeError as of ``recorded``.
        """
        agent, options = _prepared(starting_agent, input, options)
        return await agents.Runner.run(agent, input, **options)

    @classmethod
    def run_streamed(
        cls, starting_agent: Agent[Any], input: Any, *args: Any, **options: Any
    ) -> RunResultStreaming:
        """Run an agent and stream its events; see ``agents.Runner.run_streamed``.

        A reply that is served from the log gives one event, its last. The run's items are the same.
        """
        agent, options = _prepared(starting_agent, input, options)
        return agents.Runner.run_streamed(agent, input, *args, **options)

    @classmethod
    def run_sync(cls, starting_agent: Agent[Any], input: Any, **options: Any) -> RunResult:
        """Run an agent outside of a run; see ``agents.Runner.run_sync``. RuntimeError inside."""
        if current_run() is not None:
            raise RuntimeError(
                "Runner.run_sync cannot be recorded: its event loop is not the run's. Nothing was "
                "done. Make the agent function async, and write `await Runner.run(...)`"
            )
        return agents.Runner.run_sync(starting_agent, input, **options)


def _prepared(
    agent: Agent[Any], given: Any, options: dict[str, Any]
) -> tuple[Agent[Any], dict[str, Any]]:
    run = async_run()
    if run is None:
        return agent, options
    if options.get("conversation_id") is not None:
        raise ValueError(SERVER_HELD)
    if isinstance(given, RunState):
        _check(given)
    # Ids of caches and traces then belong to the run, and not to this process.
    config = recorded_config(options.get("run_config"), run.run_id)
    session = recorded_session(options.get("session"))
    return recorded(agent), {**options, "run_config": config, "session": session}


def _check(state: RunState[Any, Any]) -> None:
    for item in state.get_interruptions():
        if not is_recorded(item.agent):
            raise ValueError(
                f"the RunState is of agent {item.agent.name!r}, whose calls would not be recorded: "
                "read it with RunState.from_json(recorded(agent), ...)"
            )
