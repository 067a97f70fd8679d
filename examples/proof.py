"""Proof from outside: what the world saw, held against what the agent's log says that it did.

The world is the mailbox and the report. Each call that has a result in the log must be found there
once, and nothing else may be there.

    python proof.py WORK [DOCUMENTS]    checks again what the demo left in WORK
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import documents
import report
from mailserver import mails

from eventlog import EventLog

RUN_ID = "report"


@dataclass
class LoggedCall:
    """A call as the log has it. ``settled``: what was done each time that a kill cut it short."""

    lsn: int
    tool: str
    arguments: list[Any] | None  # None: too large to be in the log
    result: Any = None
    failed: str = ""
    settled: list[str] = field(default_factory=list)

    @property
    def key(self) -> str:
        """Its idempotency key, which the tools of this agent return; "" without a result."""
        found = re.search(r"[0-9a-f]{32}", str(self.result))
        return found[0] if found else ""

    def __str__(self) -> str:
        given = self.arguments or []
        named = next((str(a) for a in given if str(a) != "team@example.org"), "")
        shown = "".join(c if c.isprintable() else "?" for c in named[:40])
        return f"{self.tool} {shown}".rstrip()


def logged_calls(log: Path) -> list[LoggedCall]:
    """The calls of a run, in the order in which they were first made."""
    calls: dict[int, LoggedCall] = {}
    with EventLog.read(log) as reader:
        for record in reader.records():
            if record.kind == "call":
                args = record.body["args"]
                args = None if args is None else [*args[0], *args[1].values()]
                calls[record.lsn] = LoggedCall(record.lsn, record.body["tool"], args)
            elif record.kind in ("outcome", "failure", "resolved", "retry"):
                _apply(record.kind, record.body, calls[record.body["call"]])
    return list(calls.values())


def _apply(kind: str, body: dict[str, Any], call: LoggedCall) -> None:
    match kind, body:
        case "outcome", {"value": value}:
            call.result = value
        case "failure", {"type": name, "message": message}:
            call.failed = f"{name}: {message}"
        case "resolved", {"how": "outcome", "value": value}:
            call.result = value
            call.settled.append("it had happened; not made again")
        case "resolved", _:
            call.settled.append("it had not happened; made again")
        case "retry", {"attempt": attempt} if len(call.settled) < attempt - 1:
            call.settled.append("harmless; made again")


def check(work: Path, every: Path | None = None) -> tuple[list[str], list[str]]:
    """What was compared, in lines, and what is wrong.

    ``every``: a directory each of whose documents must have a section, as with the offline model.
    """
    log = work / "runs" / RUN_ID
    calls = logged_calls(log)
    sections = report.sections(work / "report.md")
    mailbox = [
        (
            re.sub(r"\W*([0-9a-f]{32})@.*", r"\1", str(mail["Message-ID"])),
            words(mail["To"], mail["Subject"], mail.get_content()),
        )
        for _, mail in mails(work / "mailbox")
    ]
    problems = [
        f"LSN {call.lsn}, {call}: it is not known what became of it"
        for call in calls
        if call.result is None and not call.failed
    ]
    with EventLog.read(log) as reader:
        if not any(record.kind == "run_finished" for record in reader.records()):
            problems.append("the run has not ended")
    lines = []
    for tool, what, found, content in (
        ("write_section", "sections in the report", sections, report.section),
        ("send_mail", "mails in the mailbox", mailbox, words),
    ):
        made = [call for call in calls if call.tool == tool]
        wrong = list(_compare(made, found, content))
        count = sum(1 for call in made if call.result is not None)
        lines.append(
            f"{len(found):>4} {what} for {count} calls of {tool}: "
            f"{'NOT exactly once' if wrong else 'each exactly once'}"
        )
        problems += wrong
    if every is not None:
        names = [" ".join(document["name"].split()) for document in documents.listing(every)]
        titles = Counter(text.partition("\n")[0].removeprefix("## ") for _, text in sections)
        missing = [name for name in names if titles[name.replace("<!--", "&lt;!--")] != 1]
        lines.append(f"{len(names) - len(missing):>4} of {len(names)} documents have one section")
        problems += [f"document {name} has not one section" for name in missing]
    return lines, problems


def _compare(made: list[LoggedCall], found: list[tuple[str, str]], content: Any) -> Iterable[str]:
    """What is wrong between the calls of a tool and what is found of them: keys and contents."""
    times = Counter(key for key, _ in found)
    texts = dict(found)
    # A call that failed may have taken effect all the same, at most once.
    failed = Counter(content(*call.arguments) for call in made if call.failed and call.arguments)
    for call in made:
        if call.result is None:
            continue
        if times[call.key] != 1:
            yield f"LSN {call.lsn}, {call}: found {times[call.key]} times"
        elif call.arguments is not None and texts[call.key] != content(*call.arguments):
            yield f"LSN {call.lsn}, {call}: found with another content"
    known = {call.key for call in made}
    for key, text in found:
        if key not in known:
            failed[text] -= 1
            if failed[text] < 0:
                yield f"{key}: no call in the log has made this: {text[:60]!r}"


def words(*texts: str) -> str:
    """Texts by their words: mails are wrapped on their way."""
    return " ".join(" ".join(texts).split())


def main() -> int:
    every = Path(sys.argv[2]) if len(sys.argv) > 2 else None
    lines, problems = check(Path(sys.argv[1]), every)
    print(*lines, *(f"WRONG {problem}" for problem in problems), sep="\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
