"""``logdump otlp``: exports a run as spans of OpenTelemetry, by its conventions for AI."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import reduce
from importlib.metadata import version
from operator import or_
from pathlib import Path
from typing import Any

from eventlog import LogError, LogReader, Snapshot
from eventlog.dump import TORN
from eventlog.errors import EncryptedLogError
from eventlog.read.verify import EncryptedFrame, Finding, Totals, examine
from eventlog.repair import LOST
from logdump.command import Command, Context
from logdump.otlp.json_output import line, request
from logdump.otlp.spans import Span, SpanOptions, Spans, span_id, trace_id
from logdump.otlp.values import Values
from logdump.show import problems
from recovery import RecoveryError
from recovery.history.first_record import started_of
from recovery.journal.encoding import decode_shallow
from recovery.journal.events import CallIntended, RunStarted
from recovery.journal.forked_from import ForkedFrom
from recovery.journal.links import ParentRun
from recovery.stores.protocol import check_run_id

TEXT = """\
Print the run as a trace: spans of OpenTelemetry by its conventions for
generative AI, one for the run ("invoke_agent"), one for each step, and one for
each call: "chat" for calls of models, "execute_tool" for all others. Nothing
is sent anywhere.

Each line is a request of OTLP/JSON: a file of them is what the collector's
otlpjsonfile receiver reads, and a line is what it takes at /v1/traces."""

MORE = """\
Ids follow from the run, so exporting it again, or after it has resumed, gives
the same ones; calls that a recovery served from the log are no spans. A run
that another one started is in that one's trace, inside the call that started
it; a fork links to the run it was forked from, and has only its own spans.

A call is of a model when it recorded tokens, or as --chat says. Arguments,
results and the task are exported only with --content, which --redact limits.
A call in doubt has no status, and "agent_eventlog.call.state".

exit code: 0; with damage, the bits of verify for it (a torn tail is none); the
run's span has "agent_eventlog.lost_records" then

examples:
  logdump otlp --service trips ~/.eventlog/run_001 > run_001.otlp.jsonl
  logdump otlp --chat 'ask_*' --provider anthropic ~/.eventlog/run_001
  logdump otlp --content --redact '*password*' ~/.eventlog/run_001
  logdump otlp ~/.eventlog/run_001 | while read -r line; do echo "$line" |
    curl -H 'Content-Type: application/json' -d @- localhost:4318/v1/traces
  done"""

# A request has at most so many spans, or so much text. The collector reads lines of 1 MiB.
LINE_SPANS, LINE_SIZE = 100, 256 << 10
DEPTH_MAX = 100  # of runs that started one another, in the search for the first


def _arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--chat",
        metavar="TOOL",
        action="append",
        default=[],
        help="tools that call a model, beside those that recorded tokens; a pattern",
    )
    add("--content", action="store_true", help="with arguments, results and the task")
    add("--agent", metavar="NAME", help="the agent's name (gen_ai.agent.name)")
    add("--provider", metavar="NAME", default="_OTHER", help="gen_ai.provider.name")
    add("--service", metavar="NAME", default="agent-eventlog", help="service.name")


def _run(context: Context) -> int:
    with context.read() as reader:
        run = _Run(context, reader)
        batch: list[str] = []
        for span in run.spans():
            batch.append(line(run.values.span(span, run.trace)))
            if len(batch) >= LINE_SPANS or sum(map(len, batch)) >= LINE_SIZE:
                context.print(run.request(batch))
                batch.clear()
        if batch:
            context.print(run.request(batch))
    wrong = [bit for bit in run.found if bit & ~TORN]
    if wrong:
        print(f"logdump: {problems(wrong)}", file=sys.stderr)
    return reduce(or_, wrong, 0)


class _Run:
    """Exports a run. ``found``: bits of the problems of its log."""

    def __init__(self, context: Context, reader: LogReader) -> None:
        self._context, self._reader, self._path = context, reader, Path(context.args.path)
        self.found: list[int] = []
        self._started = started = started_of(reader)
        log_id = reader.listing.log_id() or b""
        self._uid = started.uid if started is not None else f"log {log_id.hex()}"
        self._run_id = started.run_id if started is not None else self._path.resolve().name
        self.values = Values(context.args, context.redaction, self._run_id)
        self.trace = self._trace_of(self._uid, started)

    def request(self, spans: list[str]) -> str:
        """Print a line."""
        return request(self._context.args.service, version("agent-eventlog"), spans)

    def spans(self) -> Iterator[Span]:
        """Each span as soon as it has ended; the run's span last."""
        run = Span(span_id(self._uid, "run"), "", "run", "", 0)
        run.attributes |= {
            "agent_eventlog.run.id": self._run_id,
            "agent_eventlog.run.uid": self._uid,
        }
        parent, origin = ParentRun.of(self._started), ForkedFrom.of(self._started)
        if parent is not None:
            run.parent = span_id(parent.uid, "call", parent.lsn)
        if origin is not None:
            run.links.append(
                (
                    self._trace_of(origin.uid, self._sibling(origin.run_id, origin.uid)),
                    span_id(origin.uid, "run"),
                )
            )
        patterns = self._context.args.chat
        options = SpanOptions(
            lambda tool: any(fnmatchcase(tool, one) for one in patterns),
            self.values.of_call,
            self.values.of_run,
            self._fetch,
        )
        spans: Spans | None = None
        until = origin.until if origin is not None else 0
        for lsn, time_ns, event in self._events():
            if spans is None:
                run.start_ns = time_ns
                spans = Spans(self._uid, run, until, options)
            if event is None:
                spans.lost(1)
            else:
                yield from spans.observe(lsn, time_ns, event)
        if spans is None:
            raise RecoveryError(f"{self._path} holds no record of a run: there is nothing to tell")
        lost = self._lost
        if lost:
            spans.lost(lost)
        oldest = self._reader.oldest_lsn
        if oldest > 1:
            run.attributes["agent_eventlog.oldest_lsn"] = oldest
        owner = self._reader.owner()
        yield from spans.finish(owner is not None and bool(owner.alive))

    _lost = 0  # records that cannot be read

    def _events(self) -> Iterator[tuple[int, int, Any]]:
        """(LSN, time, event) of each record; None for an event that makes no sense."""
        for item in examine(self._reader, Totals()):
            if isinstance(item, EncryptedFrame):
                raise EncryptedLogError(self._reader.path, item.key_id)
            if isinstance(item, Finding):
                self.found.append(item.bit)
                self._lost += max(0, item.last_lsn - item.first_lsn + 1)
                continue
            for record in item.records:
                if record.kind == LOST:
                    self._lost += 1
                    continue
                try:
                    event = None if isinstance(record, Snapshot) else decode_shallow(record)
                except ValueError:
                    yield record.lsn, record.time_ns, None
                    continue
                if event is not None:
                    yield record.lsn, record.time_ns, event

    def _fetch(self, lsn: int) -> tuple[int, CallIntended] | None:
        record = self._reader.fetch({lsn}).get(lsn)
        try:
            event = decode_shallow(record) if record is not None else None
        except ValueError:  # it makes no sense
            return None
        return (record.time_ns, event) if record and isinstance(event, CallIntended) else None

    def _trace_of(self, uid: str, started: RunStarted | None) -> str:
        """The trace of a run: that of the first run in its chain of parents."""
        for _ in range(DEPTH_MAX):
            parent = ParentRun.of(started)
            if parent is None:
                break
            uid, started = parent.uid, self._sibling(parent.run_id, parent.uid)
        return trace_id(uid)

    def _sibling(self, run_id: str, uid: str) -> RunStarted | None:
        """The first record of another run of the same store; None when it cannot be read."""
        try:
            with self._context.read(str(self._path.resolve().parent / check_run_id(run_id))) as log:
                started = started_of(log)
        except (LogError, OSError, ValueError, RecoveryError):
            return None
        return started if started is not None and started.uid == uid else None


COMMAND = Command("otlp", "print a run as spans of OpenTelemetry", TEXT, MORE, _arguments, _run)
