"""Finds the agents that a user names: ``--agent MODULE:NAME``."""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any

from recovery import CheckpointStore, RecoverableAgent, RecoveryError
from recovery.agent_code.agent_name import agent_name
from recovery.cli.store_options import named, open_store
from recovery.cli.terminal import their_own
from recovery.declare.spec import ToolSpec, function_name
from recovery.history.find_run import check_one_store
from recovery.reports import RunStatus
from recovery.text import printable

PARK_AFTER_S = 5.0  # like a worker's: a command does not hold a run that waits for long


class Agents:
    """The agents that ``--agent`` names: one, or those of a dict or list."""

    def __init__(self, name: str, store: str | None, key_file: str | None) -> None:
        found = named(name)
        if inspect.isroutine(found) and not _is_tool(found) and _makes(found):
            try:
                found = found()
            except Exception as exc:
                raise their_own(exc, f"{name} raised this") from None
        several = isinstance(found, dict | list | tuple)
        each = list(found.values() if isinstance(found, dict) else found) if several else [found]
        self._name, self._several = name, several
        self._each = [_agent(name, one, store, key_file) for one in each]
        if not self._each:
            raise RecoveryError(f"{name} is empty: there is no agent in it")
        self._names: dict[str, RecoverableAgent] = {}
        for key, agent in zip(found if isinstance(found, dict) else each, self._each, strict=True):
            names = agent_name(agent.agent_fn), function_name(agent.agent_fn)
            for one in (key, *names):
                if isinstance(one, str):
                    self._names.setdefault(_short(one), agent)

    @property
    def store(self) -> CheckpointStore:
        """Where their runs are."""
        check_one_store([one.store for one in self._each])
        return self._each[0].store

    def find(self, one: RunStatus) -> RecoverableAgent | None:
        """The agent of a run, by the name of its function or that it was submitted under. None if
        the run is of another agent: it would be executed by the wrong code. Where the record does
        not say, the user knows."""
        theirs = _short(one.agent)
        if not self._several and (theirs == "" or one.kind != "agent" or one.parent is not None):
            return self._each[0]
        return self._names.get(theirs)

    def get(self, one: RunStatus) -> RecoverableAgent:
        """The agent for a run that the user names; RecoveryError if there is none. A single agent
        is taken as the user says, unless no process has begun the run."""
        found = self.find(one)
        if found is None and not self._several and one.state != "submitted":
            return self._each[0]
        if found is not None:
            return found
        was = "was submitted for" if one.state == "submitted" else "is of"
        which = "which is not in" if self._several else "which is not"
        raise RecoveryError(
            f"run {one.run_id} {was} agent {printable(one.agent) or 'without a name'}, {which} "
            f"{self._name}. Nothing was executed."
        )


def _short(name: str) -> str:
    return name.rpartition(":")[2]


def _is_tool(found: Any) -> bool:
    return isinstance(getattr(found, "tool_spec", None), ToolSpec)


def _makes(function: Any) -> bool:
    """Whether a function takes no parameters: it makes what is wanted."""
    try:
        return not inspect.signature(function).parameters
    except ValueError:
        return False


def _agent(name: str, found: Any, store: str | None, key_file: str | None) -> RecoverableAgent:
    """The agent, with the store that the user names."""
    if _is_tool(found):  # running it would have effects
        raise RecoveryError(f"{name} is a tool, not an agent. Nothing was executed.")
    if not isinstance(found, RecoverableAgent):
        if not _takes_a_run(found):
            raise RecoveryError(
                f"{name} is neither a RecoverableAgent nor a function of a run, nor a dict or "
                f"list of these{'' if ':' in name else '. Say MODULE:NAME'}"
            )
        return RecoverableAgent(found, open_store(store, key_file), park_after_s=PARK_AFTER_S)
    if store is not None:
        other = open_store(store, key_file)
        if key_file is None and other.backend.address == found.store.backend.address:
            other = found.store  # it has the agent's keys
        # The agent's own approvers: the command line must not decide who may decide.
        other.approvers, other.retention = found.store.approvers, found.store.retention
        found.store = other
    if found.settings.park_after_s is None:
        found.settings = replace(found.settings, park_after_s=PARK_AFTER_S)
    return found


def _takes_a_run(found: Any) -> bool:
    try:
        inspect.signature(found).bind(None)
    except TypeError:  # its parameters are different, or it is not callable
        return False
    except ValueError:  # no signature
        return True
    return True
