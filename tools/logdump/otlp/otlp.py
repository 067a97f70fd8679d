"""``logdump otlp``: exports a run as spans of OpenTelemetry, by its conventions for AI."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from importlib.metadata import version
from operator import or_
from types import SimpleNamespace
from typing import Annotated, Any

import typer

from eventlog import LogError, LogReader, Snapshot
from eventlog.dump import TORN
from eventlog.errors import EncryptedLogError
from eventlog.read.verify import EncryptedFrame, Finding, Totals, examine
from eventlog.repair import LOST
from logdump.context import Context, LogPath
from logdump.otlp.json_output import request, span_line
from logdump.places import beside, name_of
from logdump.show import problems
from recovery import RecoveryError
from recovery.cli.store_options import KeyFile, Redact, StoreOption
from recovery.cli.terminal import note
from recovery.history.first_record import started_of
from recovery.inspect.genai_names import PROVIDER_UNKNOWN
from recovery.inspect.run_trace import run_span, trace_of
from recovery.inspect.span import Span
from recovery.inspect.span_values import SpanOptions, SpanValues
from recovery.inspect.spans import Spans
from recovery.journal.encoding import decode_shallow
from recovery.journal.events import CallIntended, RunStarted
from recovery.journal.forked_from import ForkedFrom
from recovery.stores.protocol import check_run_id

MORE = """\
Each line is a request of OTLP/JSON: a file of them is what the collector's otlpjsonfile receiver
reads, and a line is what it takes at /v1/traces.

Ids follow from the run, so exporting it again, or after it has resumed, gives the same ones; calls
that a recovery served from the log are no spans. A run that another one started is in that one's
trace, inside the call that started it; a fork links to the run it was forked from, and has only
its own spans.

A call is of a model when it recorded tokens, or as --chat says. Arguments, results and the task
are exported only with --content, which --redact limits. A call in doubt has no status, and
"agent_eventlog.call.state".

\b
exit code: 0; with damage, the bits of verify for it (a torn tail is none);
the run's span has "agent_eventlog.lost_records" then

\b
examples:
  logdump otlp --service trips ~/.eventlog/run_001 > run_001.otlp.jsonl
  logdump otlp --chat 'ask_*' --provider anthropic ~/.eventlog/run_001
  logdump otlp --content --redact '*password*' ~/.eventlog/run_001
  logdump otlp ~/.eventlog/run_001 | while read -r line; do echo "$line" |
    curl -H 'Content-Type: application/json' -d @- localhost:4318/v1/traces
  done"""

# A request has at most so many spans, or so much text. The collector reads lines of 1 MiB.
LINE_SPANS, LINE_SIZE = 100, 256 << 10


Chat = Annotated[
    list[str] | None,
    typer.Option(
        metavar="TOOL",
        help="Tools that call a model, beside those that recorded tokens; a pattern. Repeatable.",
    ),
]
Without = Annotated[
    list[str] | None,
    typer.Option(
        metavar="TOOL",
        help="Tools without a span, for another library makes theirs; a pattern. Repeatable.",
    ),
]
Content = Annotated[bool, typer.Option("--content", help="With arguments, results and the task.")]
Agent = Annotated[str, typer.Option(metavar="NAME", help="The agent's name (gen_ai.agent.name).")]
Provider = Annotated[str, typer.Option(metavar="NAME", help="For gen_ai.provider.name.")]
Service = Annotated[str, typer.Option(metavar="NAME", help="For service.name.")]


def command(
    path: LogPath,
    chat: Chat = None,
    without: Without = None,
    content: Content = False,
    agent: Agent = "",
    provider: Provider = PROVIDER_UNKNOWN,
    service: Service = "agent-eventlog",
    redact: Redact = None,
    store: StoreOption = None,
    key_file: KeyFile = None,
) -> int:
    """Print a run as spans of OpenTelemetry.

    A trace by its conventions for generative AI: a span for the run ("invoke_agent"), one for each
    step, and one for each call: "chat" for calls of models, "execute_tool" for all others. Nothing
    is sent anywhere.
    """
    return _run(Context(locals()))


def _run(context: Context) -> int:
    with context.read() as reader:
        run = _Run(context, reader)
        batch: list[str] = []
        for span in run.spans():
            batch.append(span_line(span, run.trace))
            if len(batch) >= LINE_SPANS or sum(map(len, batch)) >= LINE_SIZE:
                context.print(run.request(batch))
                batch.clear()
        if batch:
            context.print(run.request(batch))
    wrong = [bit for bit in run.found if bit & ~TORN]
    if wrong:
        note(problems(wrong))
    return reduce(or_, wrong, 0)


class _Run:
    """Exports a run. ``found``: bits of the problems of its log."""

    def __init__(self, context: Context, reader: LogReader) -> None:
        self._context, self._reader, self._path = context, reader, str(context.args.path)
        self.found: list[int] = []
        self._started = started = started_of(reader)
        log_id = reader.listing.log_id() or b""
        self._uid = started.uid if started is not None else f"log {log_id.hex()}"
        self._run_id = started.run_id if started is not None else name_of(self._path)
        self.trace = trace_of(self._uid, started, self._sibling)

    def request(self, spans: list[str]) -> str:
        """Print a line."""
        return request(self._context.args.service, version("agent-eventlog"), spans)

    def spans(self) -> Iterator[Span]:
        """Each span as soon as it has ended; the run's span last."""
        run = run_span(self._run_id, self._uid, self._started, 0, self._sibling)
        origin = ForkedFrom.of(self._started)
        values = SpanValues(_options(self._context.args), self._run_id)
        spans: Spans | None = None
        for lsn, time_ns, event in self._events():
            if spans is None:
                run.start_ns = time_ns
                until = origin.until if origin is not None else 0
                spans = Spans(self._uid, run, until, values, self._fetch)
            if event is None:
                spans.lost(1)
            else:
                yield from spans.observe(lsn, time_ns, event)
        if spans is None:
            raise RecoveryError(f"{self._path} holds no record of a run: there is nothing to tell")
        if self._lost:
            spans.lost(self._lost)
        oldest = self._reader.oldest_lsn
        if oldest > 1:
            spans.cut_off(oldest)
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

    def _sibling(self, run_id: str) -> RunStarted | None:
        """The first record of another run of the same store; None when it cannot be read."""
        try:
            with self._context.read(beside(self._path, check_run_id(run_id))) as log:
                return started_of(log)
        except (LogError, OSError, ValueError, RecoveryError):
            return None


def _options(args: SimpleNamespace) -> SpanOptions:
    return SpanOptions(
        chat=args.chat or (),
        without=args.without or (),
        content=args.content,
        agent=args.agent,
        provider=args.provider,
        redact=args.redact or (),
    )
