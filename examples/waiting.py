"""An agent that waits: for a time, for news from outside, and for a person's answer.

    python examples/waiting.py DIRECTORY              runs it, until it has nothing to do but wait
    python examples/waiting.py DIRECTORY ship 4711    tells it that the parcel was shipped
    python examples/waiting.py DIRECTORY answer yes   answers its question

Run it again after each of these: it goes on where it stopped, with the deadlines that it had.
"""

from __future__ import annotations

import sys

from recovery import CheckpointStore, RecoverableAgent, SyncRun, tool
from recovery.errors import WaitingError

RUN = "order-17"
mails: list[str] = []


@tool
def send_mail(text: str) -> None:
    """A side effect: sent once, however often the process dies."""
    mails.append(text)
    print(f"mail: {text}")


def agent(run: SyncRun) -> str:
    number = run.wait_for("shipped")
    run.call(send_mail, f"Your parcel {number} is on its way.")
    run.sleep(0.05)  # days, elsewhere
    run.call(send_mail, "Did it arrive?")
    try:
        answer = run.wait_for("answer", timeout=7 * 24 * 3600)
    except TimeoutError:
        answer = "no answer"
    return f"{number}: {answer}"


def main(directory: str, name: str = "", value: str = "") -> None:
    store = CheckpointStore(directory)
    if name:
        event = {"ship": "shipped"}.get(name, name)
        store.run(RUN).signal(event, value, key=f"{name} {value}")
        return
    try:
        of = RecoverableAgent(agent, store, park_after_s=0.1)
        print(of.run_with_recovery_sync("parcel", RUN)["result"])
    except WaitingError as exc:
        print(exc)


if __name__ == "__main__":
    main(*sys.argv[1:])
