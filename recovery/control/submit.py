"""Hands in runs for workers."""

from __future__ import annotations

import secrets
from dataclasses import replace
from typing import Any

from recovery.history.subject_values import values_of
from recovery.journal.submission import Submission
from recovery.option_checks import check_seconds
from recovery.stores.protocol import TakesSubmissions, check_run_id, time_ns_of
from recovery.values.pack import pack
from recovery.values.sealed import Personal, Sealed, sealed_data

NAME_MAX = 200  # characters of an agent's name, or of a limit_key


def random_run_id() -> str:
    """The id of a run that gets none."""
    return secrets.token_hex(8)


def submit(
    backend: object,
    agent: str,
    task: Any,
    run_id: str | None,
    when: tuple[float, int, str],
) -> str:
    """See ``CheckpointStore.submit``; ``when``: its delay_s, priority and limit_key. The run id."""
    delay_s, priority, limit_key = when
    for name, text, least in (("agent", agent, 1), ("limit_key", limit_key, 0)):
        given: object = text
        if not isinstance(given, str) or not least <= len(text) <= NAME_MAX:
            raise ValueError(
                f"{name} is a text of {least} to {NAME_MAX} characters, not {text!r:.80}"
            )
    check_seconds("delay_s", delay_s, above=False)
    number: object = priority
    if type(number) is not int or not -(2**31) <= priority < 2**31:
        raise ValueError(f"priority is a whole number of 32 bits, not {priority!r:.80}")
    packed = pack(task.value if type(task) is Personal else task, "task")
    is_drawn = run_id is None
    run_id = random_run_id() if run_id is None else check_run_id(run_id)
    if not isinstance(backend, TakesSubmissions):
        raise TypeError(
            f"{type(backend).__name__} takes no submissions: implement "
            "recovery.stores.TakesSubmissions, or use one of the library's stores"
        )
    if type(task) is Personal:
        data = sealed_data(values_of(run_id, backend).mark(task.subject, packed))
        assert data is not None
        task = Sealed(data)
    not_before_ns = time_ns_of(backend) + int(delay_s * 1e9) if delay_s else 0
    submission = Submission(run_id, task, agent, not_before_ns, priority, limit_key)
    # Random, so that no message to an earlier run of this name counts.
    try:
        backend.submit(replace(submission, uid=secrets.token_hex(16)))
    except BaseException as exc:
        if is_drawn:  # else the caller knows it
            exc.add_note(
                f"Run {run_id!r} may be in the store all the same. Submit it again with "
                f"run_id={run_id!r}: it is begun once."
            )
        raise
    return run_id
