"""Code that was changed between a crash and the resumption: what is said, and the three choices.

Run it: python examples/divergence.py DIRECTORY
"""

from __future__ import annotations

import sys

from recovery import CheckpointStore, RecoverableAgent, SyncRun, tool
from recovery.errors import DivergenceError

sent: list[str] = []


class Killed(BaseException):
    """Stands for a SIGKILL: nothing of it is recorded."""


@tool
def send(to: str, text: str) -> str:
    """A side effect."""
    sent.append(f"{text} to {to}")
    return f"sent to {to}"


def monday(run: SyncRun) -> list[str]:
    done = [run.call(send, "ann", "Hello"), run.call(send, "bob", "Hello")]
    if run.recovery_count == 0:
        raise Killed
    return done


def tuesday(run: SyncRun) -> list[str]:
    """The same agent, edited: another greeting for Bob, and one more mail."""
    return [
        run.call(send, "ann", "Hello"),
        run.call(send, "bob", "Good morning"),
        run.call(send, "carl", "Good morning"),
    ]


def main(directory: str) -> None:
    store = CheckpointStore(directory)
    try:
        RecoverableAgent(monday, store).run_with_recovery_sync("greet", "run_1")
    except Killed:
        print("killed after:", sent)

    new_code = RecoverableAgent(tuesday, store)
    try:
        new_code.run_with_recovery_sync("greet", "run_1")
    except DivergenceError as exc:  # before anything new is done
        print(exc)

    store.run("run_1").fork("run_2")  # all that was done so far, in a run of its own
    store.run("run_1").accept(who="me", why="a warmer greeting")
    print(*new_code.run_with_recovery_sync("greet", "run_1")["result"], sep="\n")
    print("all in all:", sent)  # Ann has one mail, Bob has both

    # The copy can still be finished by the code that began it.
    print(*RecoverableAgent(monday, store).run_with_recovery_sync("greet", "run_2")["result"])


if __name__ == "__main__":
    main(*sys.argv[1:])
