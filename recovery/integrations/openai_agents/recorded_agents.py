"""Agents whose models, tools and MCP servers are recorded."""

from __future__ import annotations

import copy
import functools
from typing import Any, TypeVar

from agents import Agent, Handoff, RunConfig

from recovery.integrations.openai_agents.models import RecordedProvider, recorded_model
from recovery.integrations.openai_agents.servers import recorded_server
from recovery.integrations.openai_agents.sessions import recorded_session
from recovery.integrations.openai_agents.tools import recorded_tool

A = TypeVar("A", bound=Agent[Any])
_MARK = "_recorded"  # of agents that are

Made = dict[int, tuple[Any, Any]]  # by identity: an agent, and the one that is recorded


def is_recorded(agent: Any) -> bool:
    """Whether the agent was made by ``recorded``."""
    return _MARK in getattr(agent, "__dict__", ())


def recorded(agent: A) -> A:
    """A copy of ``agent``, with all that it hands off to, recorded; the agent itself is as it was.

    ``Runner`` does this for each run. It is needed for an agent that is a tool,
    ``recorded(agent).as_tool(...)``, so that the calls inside are recorded too. Outside of a run
    the copy does what the agent does. Tools and handoffs that are added to the agent later are not
    in the copy.

    TypeError for a tool that works on this machine and is no function tool. The same for an agent
    that is a tool and is not recorded itself.
    """
    return _recorded(agent, {})


def _recorded(agent: Any, made: Made) -> Any:
    if is_recorded(agent):
        return agent
    if id(agent) in made:
        return made[id(agent)][1]
    clone = agent.clone(
        model=recorded_model(agent.model),
        tools=[recorded_tool(one, is_recorded) for one in agent.tools],
        mcp_servers=[recorded_server(one) for one in agent.mcp_servers],
        handoffs=[],
    )
    made[id(agent)] = agent, clone  # before its handoffs: they may lead back
    clone.handoffs = [_handed(one, made) for one in agent.handoffs]
    vars(clone)[_MARK] = True
    vars(clone)["as_tool"] = functools.partial(_as_tool, clone)
    return clone


def _handed(to: Any, made: Made) -> Any:
    if not isinstance(to, Handoff):
        return _recorded(to, made)
    handoff, invoke = copy.copy(to), to.on_invoke_handoff

    async def on_invoke_handoff(*args: Any, **kwargs: Any) -> Any:
        return _recorded(await invoke(*args, **kwargs), made)

    handoff.on_invoke_handoff = on_invoke_handoff
    return handoff


def _as_tool(agent: Any, *args: Any, **options: Any) -> Any:
    if options.get("run_config") is not None:
        options["run_config"] = recorded_config(options["run_config"])
    options["session"] = recorded_session(options.get("session"))
    return type(agent).as_tool(agent, *args, **options)


def recorded_config(config: Any, group_id: str | None = None) -> RunConfig:
    """The settings of a run, with models that are recorded. ``group_id``: where there is none."""
    if isinstance(config, dict):
        config = RunConfig(**config)
    config = copy.copy(config) if config is not None else RunConfig()
    config.model = recorded_model(config.model)
    if type(config.model_provider) is not RecordedProvider:
        config.model_provider = RecordedProvider(config.model_provider)
    config.group_id = config.group_id or group_id
    return config
