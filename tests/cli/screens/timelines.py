"""Runs for the timeline, written record by record, so that each time is known.

    python -m tests.cli.screens.timelines DIRECTORY      writes them there, one log each

``day``: a day of an agent with all that a timeline can show. ``long``: 10,000 records. ``hostile``:
every text in it is markup.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from eventlog import EventLog
from eventlog.files.posix import OSFiles
from recovery.history.write_checkpoint import CheckpointMeta, CheckpointWriter
from recovery.journal.call_key import call_scope
from recovery.journal.encoding import encode
from recovery.journal.events import (
    AttemptFailed,
    CallAbandoned,
    CallDecided,
    CallFailed,
    CallIntended,
    CallResolved,
    CallRetried,
    CallReturned,
    Event,
    MessagesChanged,
    RunParked,
    RunResumed,
    RunStarted,
    SignalTaken,
    StepStarted,
    ValueRecorded,
)
from recovery.journal.messages import Messages
from recovery.values.pack import pack, pack_list
from recovery.values.types import Ref, digest

BEGAN_NS = 1_793_000_000_000_000_000  # 2026-10-26 04:53:20 UTC


class _Clocked(OSFiles):
    """Files whose clock is that of a script."""

    def __init__(self, script: Script) -> None:
        self._script = script

    def time_ns(self) -> int:
        return self._script.now_ns


class Script:
    """Writes the log of a run, at times that it is told. ``wait`` in seconds."""

    def __init__(self, path: Path, task: Any, run_id: str = "") -> None:
        self.now_ns = BEGAN_NS
        self._log = EventLog.open(path, "process", files=_Clocked(self))
        self.path, self._step, self._occurrence = path, 0, 0
        self._messages = 0
        self.recoveries = 0
        self.run_id = run_id or path.name
        self._snapshots = CheckpointWriter(self._log)
        self.note(RunStarted(self.run_id, pack(task, "task"), "0123456789abcdef"))

    def wait(self, seconds: float) -> Script:
        self.now_ns += round(seconds * 1e9)
        return self

    def note(self, event: Event) -> int:
        return self._log.append(*encode(event))

    def step(self) -> int:
        self._step += 1
        return self.note(StepStarted(self._step))

    def call(self, tool: str, after: str = "retry", inside: int = 0, **options: Any) -> int:
        """The intent of a call; its LSN."""
        kwargs = options.pop("args", {})
        packed = pack([[], kwargs], "args")
        self._occurrence += 1
        scope = call_scope(inside) if inside else str(self._step)
        return self.note(
            CallIntended(
                scope,
                tool,
                options.pop("call_id", ""),
                digest(packed),
                self._occurrence,
                after,
                options.pop("packed", packed),
                len(packed),
                **options,
            )
        )

    def returned(self, call: int, value: Any, usage: Any = None) -> int:
        return self.note(CallReturned(call, pack(value, "value"), usage))

    def failed(self, call: int, message: str, kind: str = "builtins.OSError") -> int:
        trace = f'Traceback (most recent call last):\n  File "tools.py", line 7\n{kind}: {message}'
        return self.note(CallFailed(call, kind, message, None, trace))

    def did(self, tool: str, seconds: float, value: Any, **options: Any) -> int:
        """A call from its beginning to its end; the LSN of its outcome."""
        call = self.call(tool, **options)
        self.wait(seconds)
        return self.returned(call, value)

    def say(self, *new: Any, start: int | None = None, stop: int | None = None) -> int:
        """Messages at the end of the conversation, or in place of others."""
        start = self._messages if start is None else start
        stop = start if stop is None else stop
        self._messages += len(new) - (stop - start)
        packed = pack_list([pack(one, "message") for one in new])
        return self.note(MessagesChanged(start, stop, packed))

    def checkpoint(self) -> int:
        made = CheckpointMeta(
            self.run_id, self._step, self.now_ns / 1e9, recoveries=self.recoveries, prologue=(1,)
        )
        return self._snapshots.write(made, {}, Messages())

    def die(self) -> None:
        """The process is gone; the log stays as it is."""
        self._log.commit()
        self._log.close()

    def resume(self, seconds: float, from_step: int) -> int:
        """Another process takes the run up."""
        self.die()
        self.reopen(seconds)
        self.recoveries += 1
        return self.note(RunResumed(self.recoveries, from_step))

    def reopen(self, seconds: float) -> None:
        self.wait(seconds)
        self._log = EventLog.open(self.path, "process", files=_Clocked(self))
        self._snapshots._log = self._log


def _asked(script: Script, text: str, *calls: dict[str, Any], seconds: float = 4.2) -> list[Any]:
    """The model is asked, and its reply is appended."""
    model = script.call("ask_model", packed=None)
    script.wait(seconds)
    reply = {"role": "assistant", "content": text, "tool_calls": list(calls)}
    lsn = script.returned(model, reply, [1200 + 90 * model, 140 + model, 0.004])
    script.say(Ref(lsn))
    return list(calls)


def day(path: Path) -> None:
    """Research, a payment and mails: three processes, all states, damage excepted."""
    task = "Find out what river otters eat in winter, pay the archive, mail the report."
    run = Script(path, task)
    run.say(
        {"role": "system", "content": "You are a careful research agent."},
        {"role": "user", "content": "What do river otters eat in winter? Mail me the report."},
    )
    run.wait(0.3).note(ValueRecorded("0", "now", 1, pack(BEGAN_NS / 1e9, "now")))
    for part in (_search, _read, _pay, _mails, _publish):
        run.wait(0.2).step()
        part(run)
    run.die()


def _search(run: Script) -> None:
    """Three calls side by side, one of which needs a second attempt."""
    _asked(run, "I will search three sources at once.")
    searches = [
        run.call("search", call_id=f"toolu_{i}", args={"query": query, "limit": 10})
        for i, query in enumerate(("otter diet winter", "Lontra canadensis prey", "fish under ice"))
    ]
    run.wait(1.4)
    run.say({"role": "tool", "content": "34 hits"})
    run.returned(searches[1], [{"title": f"Paper {i}", "score": i / 7} for i in range(7)])
    again_at = run.now_ns / 1e9 + 2.3
    failed = AttemptFailed(searches[0], 1, "builtins.TimeoutError", "no answer in 2 s", again_at)
    run.wait(0.9).note(failed)
    run.wait(0.6).returned(searches[2], "nothing")
    run.wait(0.8).note(CallRetried(searches[0], 2))
    run.wait(1.1).returned(searches[0], {"hits": 34, "best": "Melquist & Hornocker 1983"})
    run.wait(0.1).checkpoint()


def _read(run: Script) -> None:
    """Calls inside a call."""
    _asked(run, "I read the two best ones.")
    outer = run.call("read_papers", args={"ids": ["melquist83", "roberts08"]})
    run.wait(0.4)
    pages = [
        run.call("fetch", inside=outer, args={"url": f"https://example.org/{i}.pdf"})
        for i in range(3)
    ]
    run.wait(1.2).returned(pages[0], "x" * 5000)
    run.wait(0.3).failed(pages[1], "404 Not Found", "httpx.HTTPStatusError")
    run.wait(2).returned(pages[2], "y" * 5000)
    summary = {"summary": "Mostly fish, and crayfish where there are any."}
    run.did("summarise", 3.1, summary, inside=outer, args={"pages": 2})
    run.wait(0.2)
    run.say({"role": "tool", "content": summary["summary"]})
    run.returned(outer, summary)


def _pay(run: Script) -> None:
    """A call that waits for a yes for hours, in which the run is parked."""
    _asked(run, "The archive wants 12.50 EUR. I ask for approval.")
    args = {"to": "archive@example.org", "cents": 1250, "currency": "EUR"}
    pay = run.call("pay", "park", call_id="toolu_9", asks_until=float("inf"), args=args)
    run.wait(0.1).note(RunParked([pay], why="approval of pay"))
    run.resume(4 * 3600 + 700, 2)
    run.wait(0.1).note(CallDecided(pay, True, "maria", "within the budget", 3))
    run.wait(2.2).returned(pay, {"receipt": "R-20931"})
    run.say({"role": "tool", "content": "paid, receipt R-20931"})
    run.wait(0.1).checkpoint()


def _mails(run: Script) -> None:
    """A sleep; then a crash with two calls under way, and three days until somebody notices."""
    _asked(run, "Now the report and the mails.")
    nap = run.call("run.sleep", "wait", args={"seconds": 900})
    run.did("write_report", 6.5, "report.md, 14 KB", args={"title": "Winter diet of river otters"})
    run.wait(880).returned(nap, None)
    mails = [
        run.call("send_mail", after, call_id=f"toolu_{after}", args={"to": to, "subject": "Otters"})
        for after, to in (("park", "maria@example.org"), ("reconcile", "library@example.org"))
    ]
    index = run.call("index_report", args={"path": "report.md"})
    run.wait(1.1).returned(mails[0], "queued as 8812")
    run.wait(0.7)
    run.note(ValueRecorded("4", "uuid", 1, pack("4f0c", "v")))
    run.resume(3 * 86400 + 4 * 3600, 3)
    run.wait(0.3).note(CallRetried(index, 2))
    run.wait(0.4).note(CallResolved(mails[1], "outcome", pack("queued as 8813", "v"), "reconcile"))
    run.wait(1.5).failed(index, "index is read-only", "builtins.PermissionError")


def _publish(run: Script) -> None:
    """The last step: a call in doubt when the process dies."""
    _asked(run, "Last: the invoice, and the public page.")
    slow = run.call("render", args={"page": "otters.html"})
    run.wait(3).note(CallAbandoned(slow, 1, "timeout", went_on=True))
    run.say({"role": "user", "content": "(render took too long; it is left out)"}, start=2, stop=3)
    args = {"page": "otters.html", "public": True}
    publish = run.call("publish", "park", call_id="toolu_14", args=args)
    card = {"card": "tok_1Nx", "cents": 1490, "customer": "cus_881"}
    run.call("charge_card", "park", call_id="toolu_15", args=card)
    wait = run.call("run.wait_for", "wait", args={"name": "webhook"})
    run.wait(0.9).note(SignalTaken(wait, pack({"seen": True}, "v"), name="webhook", inbox=4))
    run.wait(1.2).returned(publish, "https://example.org/otters")
    run.wait(0.6).note(ValueRecorded("5", "now", 1, pack(run.now_ns / 1e9, "now")))


def long(path: Path, records: int = 10_000) -> None:
    """An agent that works for hours: most steps the same, crashes now and then."""
    rng = random.Random(9)
    run = Script(path, {"goal": "Go through 900 tickets", "queue": "support"})
    run.say({"role": "system", "content": "Answer the tickets, one after the other."})
    written = 2
    while written < records - 12:
        run.wait(0.05)
        run.step()
        ticket = f"T-{1000 + run._step}"
        _asked(run, f"Ticket {ticket}: I look it up, and answer.", seconds=rng.uniform(0.8, 6))
        lookups = [
            run.call(tool, args={"ticket": ticket, "fields": ["customer", "history"]})
            for tool in ("get_ticket", "get_customer", "search_docs")
        ]
        rng.shuffle(lookups)
        for call in lookups:
            run.wait(rng.uniform(0.05, 0.9))
            if rng.random() < 0.03:
                run.failed(call, "connection reset by peer", "builtins.ConnectionError")
            else:
                run.returned(
                    call,
                    {
                        "ticket": ticket,
                        "text": "The app does not start. " * 8,
                        "score": round(rng.random(), 3),
                    },
                )
        run.say({"role": "tool", "content": f"{ticket}: found " + "what was asked for, " * 6})
        run.did(
            "send_reply",
            rng.uniform(0.1, 0.5),
            "sent",
            after="park",
            args={"ticket": ticket, "body": "Please install version 2.4. " * 5},
        )
        written += 13
        if run._step % 4 == 0:
            run.checkpoint()
            written += 1
        if run._step % 97 == 0:
            run.resume(rng.choice([8, 40, 600, 90_000]), run._step)
            written += 1
    run.step()
    run.call("charge", "park", call_id="toolu_last", args={"customer": "cus_7", "cents": 990})
    run.wait(1)
    while run.did("get_ticket", 0.2, "closed", args={"ticket": "T-1"}) < records - 1:
        pass
    run.die()


HOSTILE = (
    "</script><img src=x onerror=\"document.title='owned'\"><!--<script>",
    "<svg/onload=alert(1)>",
    "\u2028alert(1)\u2029",
    "${alert(1)}{{7*7}}",
    "\x1b]0;owned\x07\u202egnp.exe",
    "&lt;b&gt;'\"`",
    "javascript:alert(1)",
    "</title></style></noscript><script>document.title='owned'</script>",
)


def hostile(path: Path) -> None:
    """A run in which every text tries to become code."""
    bad = "".join(HOSTILE)
    run = Script(path, {bad: bad}, run_id=bad)
    run.step()
    for text in HOSTILE:
        run.say({"role": text, "content": text}, text, {text: text})
        lsn = run.did(text, 0.5, {text: [text]}, call_id=text, after="park", args={text: text})
        run.say(Ref(lsn))
        run.failed(run.call(text), text, text)
        run.note(ValueRecorded("1", text, 1, pack(text, "v")))
        call = run.call(text, "park")
        run.note(CallResolved(call, "outcome", pack(text, "v"), text, text))
    run._log.append(HOSTILE[0], {"body": bad})
    doubt = run.call(bad, "park", args={"x": bad})
    run.note(RunParked([doubt], why=bad))
    run.die()


RUNS: dict[str, Callable[[Path], None]] = {"day": day, "long": long, "hostile": hostile}


def main(folder: str) -> None:
    for name, write in RUNS.items():
        write(Path(folder) / name)


if __name__ == "__main__":
    main(sys.argv[1])
