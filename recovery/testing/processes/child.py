"""Runs the agent ``module:name`` in this process, for a crash test.

    python _child.py module:name TASK RESULT_FILE DIRECTORY

The agent is a RecoverableAgent, which is run on the task, or a function, plain or async, which gets
the task if it takes an argument. Its result is written as JSON into the file in ``$CRASHTEST_DIR``.
Its module is searched in the working directory, then in the directory where the test was started.
This file imports no other module of the library, so that an agent without it starts fast.
"""

from __future__ import annotations

import inspect
import json
import os
import pkgutil
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

PARKED = 75  # exit code of a run that waits for a person (sysexits.h: try again later)


def run(name: str, task: Any) -> Any:
    """The result of the agent of that name."""
    agent = pkgutil.resolve_name(name)  # a name from the command line, not from any data
    recovery = sys.modules.get("recovery")
    if recovery is not None and isinstance(agent, recovery.RecoverableAgent):
        return _recoverable(agent, task, recovery.InDoubtError)
    if not callable(agent):
        raise TypeError(f"{name} is neither a function nor a RecoverableAgent, but {agent!r}")
    result = agent(task) if _takes_argument(agent) else agent()
    return _awaited(result) if inspect.isawaitable(result) else result


def _awaited(awaitable: Awaitable[Any]) -> Any:
    import asyncio  # noqa: PLC0415 - a plain agent does not wait for it

    async def wait() -> Any:
        return await awaitable

    return asyncio.run(wait())


def _recoverable(agent: Any, task: Any, in_doubt: type[Exception]) -> Any:
    # Every run of a crash test has an id of its own, because the runs may share a store.
    try:
        return agent.run_with_recovery_sync(task, os.environ["CRASHTEST_RUN"])["result"]
    except in_doubt as exc:
        sys.stderr.write(f"{exc}\n")
        sys.exit(PARKED)


def _takes_argument(function: Callable[..., Any]) -> bool:
    kinds = (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        inspect.Parameter.VAR_POSITIONAL,
    )
    return any(found.kind in kinds for found in inspect.signature(function).parameters.values())


def main() -> None:
    name, task, file, directory = sys.argv[1:]
    sys.path[:1] = [str(Path.cwd()), directory]  # instead of where this file is
    result = run(name, json.loads(task))
    try:
        text = json.dumps(result, sort_keys=True, ensure_ascii=False, default=repr)
    except (TypeError, ValueError, RecursionError):
        text = repr(result)
    Path(os.environ["CRASHTEST_DIR"], file).write_text(text)


if __name__ == "__main__":
    main()
