"""Starts the commands as processes, fast: all is imported once, and each command is a fork.

On the socket of which it is given the number come JSON objects: ``tool``, ``args``, ``env``,
``cwd`` and ``now`` (seconds since 1970), each with what is to be standard input, output and error.
Answers with the process id, and with the exit code (negative: the signal) when it has ended. One at
a time. As in a process of its own, the interpreter ends the command, and flushes what is left.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import sys
import termios
import time
from typing import Any

import logdump
import logdump.app
import typer.main

import recovery.cli
import recovery.cli.app

# Once for all of them: it takes most of the time of a command.
PARSERS = {
    app.info.name: typer.main.get_command(app) for app in (logdump.app.app, recovery.cli.app.app)
}
typer.main.get_command = lambda typer_instance: PARSERS[typer_instance.info.name]


Request = dict[str, Any]


def serve(requests: socket.socket) -> tuple[Request, list[int]] | None:
    """Fork a process for each request; in that process, return it, and the files."""
    while True:
        line, files, _, _ = socket.recv_fds(requests, 1 << 16, 3)
        if not line:
            return None
        pid = os.fork()
        if not pid:
            return json.loads(line), files
        for file in files:
            os.close(file)
        requests.send(str(pid).encode())
        _, status = os.waitpid(pid, 0)
        requests.send(str(os.waitstatus_to_exitcode(status)).encode())


def become(request: Request, files: list[int]) -> None:
    """Be a process that was started with these files, this environment, at this time."""
    os.setsid()
    if os.isatty(files[0]):
        fcntl.ioctl(files[0], termios.TIOCSCTTY, 0)  # whose Ctrl-C reaches it
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 - as at a start
    for number, name in ((1, "stdout"), (2, "stderr")):
        buffering = 1 if number == 2 or os.isatty(number) else -1
        stream = open(number, "w", buffering, "utf-8", closefd=False)  # noqa: SIM115
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    os.environ.clear()
    os.environ.update(request["env"])
    time.tzset()
    os.chdir(request["cwd"])
    now = request["now"]
    time.time, time.time_ns = (lambda: now), (lambda: int(now * 1e9))
    signal.signal(signal.SIGINT, signal.default_int_handler)


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as requests:
        asked = serve(requests)
    if asked is not None:
        become(*asked)
        request, _ = asked
        main = logdump.main if request["tool"] == "logdump" else recovery.cli.main
        sys.exit(main(request["args"]))
