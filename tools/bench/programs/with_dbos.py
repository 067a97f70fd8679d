"""The agent, on DBOS with SQLite, its default."""

from __future__ import annotations

import itertools
import os
import signal
import sqlite3
import sys
import time

from dbos import DBOS, SetWorkflowID
from sqlalchemy import event
from sqlalchemy.engine import Engine

AGAIN = 3
MODE, DIRECTORY, STEPS = sys.argv[1], sys.argv[2], int(sys.argv[3])

if MODE == "crash":  # the record is the same, and is made sooner

    @event.listens_for(Engine, "connect")  # type: ignore[untyped-decorator]
    def _no_flushes(connection: sqlite3.Connection, _: object) -> None:
        connection.execute("PRAGMA synchronous=OFF")


@DBOS.step()  # type: ignore[untyped-decorator]
def work(number: int) -> str:
    """Return a value; at the last step, crash or say what time it is."""
    if number > STEPS:
        if MODE == "crash":
            os.kill(os.getpid(), signal.SIGKILL)
        print(time.monotonic(), flush=True)
        os._exit(0)
    if MODE != "crash":
        os._exit(AGAIN)
    return f"result {number} ".ljust(2048, ".")


@DBOS.workflow()  # type: ignore[untyped-decorator]
def agent() -> None:
    """A step is one call."""
    for number in itertools.count(1):
        work(number)


DBOS(
    config={
        "name": "bench",
        "system_database_url": f"sqlite:///{DIRECTORY}/db",
        "run_admin_server": False,
        "log_level": "ERROR",
    }
)
DBOS.launch()
if MODE == "crash":
    with SetWorkflowID("run"):
        DBOS.start_workflow(agent)
time.sleep(3600)  # workflows are at work, and taken up again, in threads
