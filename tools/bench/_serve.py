"""The process of a subject: ``_serve.py MODULE:CLASS DIRECTORY CASE``, run by _worker.

Reads one JSON object a line: ``{"call": method, "args": {...}}``; answers ``{"value": ...}``. Needs
nothing but the standard library and what the subject imports: other packages have another Python.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
import time
import traceback
from functools import partial
from pathlib import Path
from typing import Any, TextIO


def steps(subject: Any, first: int, count: int) -> list[float]:
    """Do so many steps, numbered from ``first``; seconds that each took."""
    if hasattr(subject, "turn"):  # the steps are made by code that cannot be called step by step
        return list(subject.turn(count))
    times, step, clock = [], subject.step, time.perf_counter
    for number in range(first, first + count):
        began = clock()
        step(number)
        times.append(clock() - began)
    return times


def cpu(subject: Any, first: int, count: int) -> list[float]:
    """The same; seconds of CPU, of all threads, per step, as one figure."""
    began = time.process_time()
    if hasattr(subject, "turn"):
        subject.turn(count)
    else:
        step = subject.step
        for number in range(first, first + count):
            step(number)
    return [(time.process_time() - began) / count]


def serve(subject: Any, questions: TextIO, answers: TextIO) -> None:
    """Answer until there are no more questions."""
    for line in questions:
        asked = json.loads(line)
        own = {"steps": partial(steps, subject), "cpu": partial(cpu, subject)}.get(asked["call"])
        value = (own or getattr(subject, asked["call"]))(**asked["args"])
        print(json.dumps({"value": value}), file=answers, flush=True)


def main() -> None:
    name, directory, case = sys.argv[1:4]
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what packages print is not an answer
    if json.loads(case).get("real_time"):
        with contextlib.suppress(OSError, AttributeError):
            # All on one CPU: the one that the disk interrupts is a third faster than the others.
            os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    module, _, kind = name.partition(":")
    try:
        subject = getattr(importlib.import_module(module), kind)(Path(directory), json.loads(case))  # noqa: TID251 - as above
        print(json.dumps({"value": "ready"}), file=answers, flush=True)
        serve(subject, sys.stdin, answers)
        if hasattr(subject, "close"):
            subject.close()
    except BaseException:
        print(json.dumps({"error": traceback.format_exc()}), file=answers, flush=True)
    # Threads that a package leaves behind are not waited for.
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
