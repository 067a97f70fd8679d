"""``logdump verify``: checks everything, and says what is wrong and what it means for recovery."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from itertools import islice
from pathlib import Path

from eventlog import LogError, LogReader
from eventlog.dump import BAD_SNAPSHOT, DAMAGED, GAP, NOT_A_LOG, Finding, Json, Totals, verify
from eventlog.errors import EncryptedLogError
from logdump.context import Context, LogPath, UsageError
from logdump.places import inside, may_have_inbox, name_of
from logdump.show import as_line, finding_line, place_line, summary_line
from logdump.verify.consequences import Consequences, InboxConsequences, Refusal, is_run
from recovery import RecoveryError
from recovery.cli.exit_codes import IO_ERROR, NO_KEY
from recovery.cli.progress import working
from recovery.cli.store_options import AsJson, KeyFile, Redact, StoreOption
from recovery.history.store_url import is_url, split_run, store_at
from recovery.inspect.calls_without_outcome import OpenCall
from recovery.inspect.status import RunStatus, status_of
from recovery.stores.protocol import INBOX, RUN_ID
from recovery.text import count, printable

FINDINGS_MAX = 10_000  # of a log, whose consequences are shown: they are kept in memory
SEGMENT = "[0-9]" * 8 + ".seg"

Meaning = Consequences | InboxConsequences | Refusal | None

MORE = """\b
The exit code adds up what was found:
   0  sound
   1  torn tail: never acknowledged; the next opening cuts it off; harmless
   2  damaged record, or other bytes that have changed since they were written
   4  missing segment
   8  bad snapshot: recovery falls back to an earlier one
  16  gap in LSNs
  32  not a log, or of a version that this program does not know
  64 and above: verify could not do its work
      (64 wrong usage, 66 no such file or directory, 74 read error, 77 wrong
      key); of a store, the runs that can be read are checked all the same

\b
--json prints one object per line:
  a problem: "type" ("damage", "torn_tail" or "note"), "log" (its directory),
    "bit" (as above, 0 for a note), "segment" and "file", "offset" (up to
    there the segment is sound), "size" (bytes that are damaged), "next_frame"
    (the next sound one, null if that file has none), "bytes_after" (how many
    bytes follow), "first_lsn" and "last_lsn" (the records lost; none when
    last < first), "text", "consequence", "calls" (recorded ones that become
    in doubt)
  a call without an outcome: "type" ("open_call"), "log", "lsn", "name",
    "tool", "call_id", "step", "state", "then"
  at the end of each log: "type" ("totals"), "log", "exit_code" and counts
  at the end of a store: "type" ("store"), "runs", "exit_code"

Without the key of an encrypted log everything is checked but the content of the records. With it,
that too, and that they were written with it.

On the log of a running agent, a record that is being written may be reported as a torn tail;
records written after the start of verify are not checked.

\b
examples:
  logdump verify ~/.eventlog/run_001
  logdump verify ~/.eventlog
  logdump verify ~/.eventlog/run_001/00000003.seg
  logdump verify --json ~/.eventlog/run_001 | jq 'select(.bit > 1)'"""


def command(
    path: LogPath,
    redact: Redact = None,
    store: StoreOption = None,
    key_file: KeyFile = None,
    as_json: AsJson = False,
) -> int:
    """Check everything, and say what is wrong.

    Check every segment, frame, footer, snapshot and value of a run, of one segment (PATH is a
    file), or of all runs of a store (PATH is the directory of the runs), and of what others have
    sent to the runs. Say for each problem where it is and what it means for recovery, and which
    calls have no outcome.
    """
    return _run(Context(locals()))


def _run(context: Context) -> int:
    if is_url(context.args.path):
        return _at_url(context, context.args.path)
    path = Path(context.args.path)
    if path.is_file():
        if not path.match(SEGMENT):
            raise UsageError(f"{path} is a file, and no segment: those are called 00000001.seg")
        return _Checked(context, str(path.parent)).check(int(path.stem)).exit_code
    runs = [] if has_segments(path) or not path.is_dir() else list(_runs(path))
    return _store(context, list(map(str, runs))) if runs else _run_and_inbox(context, str(path))


def _at_url(context: Context, url: str) -> int:
    where, run = split_run(url)
    if run:
        return _run_and_inbox(context, url)
    runs = store_at(context.store_url(where), encryption=context.encryption).run_ids()
    return _store(context, [inside(where, run_id) for run_id in runs])


def has_segments(path: Path) -> bool:
    """Whether the directory is a log."""
    return next(path.glob(SEGMENT), None) is not None


def _runs(path: Path) -> Iterator[Path]:
    """The runs of a store; skips directories that are not runs, or not yet."""
    for one in sorted(path.iterdir()):
        if RUN_ID.fullmatch(one.name) and one.is_dir() and has_segments(one):
            yield one


def _run_and_inbox(context: Context, path: str, *, named: bool = False) -> int:
    before = 0
    if may_have_inbox(path):
        with suppress(FileNotFoundError):  # no message was sent
            before = _Checked(context, inside(path, INBOX), named=True).check().exit_code
    try:
        return _Checked(context, path, named=named).check(before=before).exit_code
    except (LogError, NotADirectoryError) as exc:
        if context.args.as_json and not isinstance(exc, EncryptedLogError):
            foreign = Finding(NOT_A_LOG, 0, 0, 0, 1, 0, str(exc))
            context.print(as_line({**foreign.as_json(), "log": path}))
        raise


def _store(context: Context, runs: list[str]) -> int:
    """Check all runs of a store, one after the other, also after errors."""
    bits = failed = wrong = 0
    for run in runs:
        code = 0
        try:
            code = _run_and_inbox(context, run, named=True)
        except EncryptedLogError as exc:
            failed = failed or NO_KEY
            _unread(context, run, str(exc))
        except LogError as exc:
            code = NOT_A_LOG
            _unread(context, run, str(exc))
        except OSError as exc:
            failed = failed or IO_ERROR
            _unread(context, run, exc.strerror or str(exc))
        bits, wrong = bits | code, wrong + (code > 0)
    bits = failed or bits
    if context.args.as_json:
        context.print(as_line({"type": "store", "runs": len(runs), "exit_code": bits}))
    else:
        found = f"problems in {wrong} of them" if wrong else "sound"
        context.print_prose(f"{count(len(runs), 'run')}: {found} (exit code {bits})")
    return bits


def _unread(context: Context, run: str, why: str) -> None:
    if not context.args.as_json:
        context.print_prose(f"{printable(run)}: could not be checked: {printable(why)}")


def run_in(reader: LogReader, path: str) -> RunStatus | None:
    """The status of the run whose log is at ``path``; None for another log, or when it cannot be
    read. Its problems are reported anyway."""
    name = name_of(path)
    # Some kinds of messages in an inbox are also kinds of events.
    if name == INBOX or not is_run(reader):
        return None
    try:
        return status_of(reader, name)
    except (LogError, RecoveryError, ValueError):
        return None


def meaning_of(
    reader: LogReader, path: str, findings: Sequence[Finding], run: RunStatus | None
) -> Meaning:
    """The consequences of the findings in the log at ``path``, as far as they are known."""
    if findings and Path(path).resolve().name == INBOX:
        return InboxConsequences()
    return Consequences(reader, findings, run.calls) if findings and run is not None else None


class _Checked:
    """Checks one log, and prints its findings."""

    def __init__(self, context: Context, path: str, *, named: bool = False) -> None:
        self.context, self.path, self.as_json = context, path, context.args.as_json
        self.prefix = f"{printable(path)}: " if named else ""

    def check(self, segment: int = 0, before: int = 0) -> Totals:
        """Check the log, or one segment of it; returns totals with the bits found ``before``."""
        with self.context.read_below(self.path) as reader:
            checking = _Findings(reader, segment)
            segments = 1 if segment else len(reader.listing.numbers())
            with working(f"checking {self.path}", lambda: checking.totals.segments, segments):
                held = list(islice(checking, FINDINGS_MAX))
            run = None if segment else run_in(reader, self.path)
            meaning = meaning_of(reader, self.path, held, run)
            for finding in held:
                self._show_finding(finding, meaning)
            for finding in checking:  # beyond FINDINGS_MAX: without their consequences
                self._show_finding(finding, None)
            refused = _refused(run) if run is not None else []
            for finding in refused:
                self._show_finding(finding, Refusal())
                checking.totals.exit_code |= finding.bit
            if run is not None and not refused:
                self._show_calls(run)
        totals = checking.totals
        totals.exit_code |= before
        if self.as_json:
            self.context.print(as_line({"type": "totals", "log": self.path, **asdict(totals)}))
        elif totals.exit_code or Path(self.path).name != INBOX:  # a sound inbox is not mentioned
            name = f"{self.path}/{segment:08d}.seg" if segment else self.path
            self.context.print_prose(summary_line(name, totals))
        return totals

    def _show_finding(self, finding: Finding, meaning: Meaning) -> None:
        consequence = meaning.of(finding) if meaning is not None else ""
        place = self._place(finding)
        if self.as_json:
            hit = meaning.calls_hit(finding) if meaning is not None else ()
            calls: list[Json] = [call.name for call in hit]
            item: dict[str, Json] = {
                **finding.as_json(),
                "log": self.path,
                **place,
                "consequence": consequence,
                "calls": calls,
            }
            return self.context.print(as_line(item))
        self.context.print_prose(self.prefix + finding_line(finding))
        if place["file"] and finding.bit in (DAMAGED, BAD_SNAPSHOT, GAP):
            self.context.print_prose(f"  {place_line(finding, place)}")
        if consequence and finding.bit > 1:
            self.context.print_prose(f"  {printable(consequence)}")

    def _place(self, finding: Finding) -> dict[str, Json]:
        name = f"{finding.segment:08d}.seg" if finding.segment else None
        file = Path(self.path, name) if name else None
        size = file.stat().st_size if file is not None and file.is_file() else None
        end = finding.offset + finding.size
        return {
            "file": None if size is None else str(file),
            "bytes_after": None if size is None else max(0, size - end),
        }

    def _show_calls(self, run: RunStatus) -> None:
        """Print the calls without outcomes."""
        is_over = run.state in ("cancelled", "undone")
        for call in run.in_doubt if is_over else run.calls:
            then = f"does nothing: the run is {run.state}" if is_over else call.then
            if self.as_json:
                item = _call(call) | {"log": self.path, "then": then}
                self.context.print(as_line(item))
            else:
                name, step = printable(call.name), f"step {call.step}, " if call.step else ""
                text = f"call {name} ({step}{call.state}) has no outcome: recovery {then}"
                self.context.print_prose(f"{self.prefix}note: {text}")


def _refused(run: RunStatus) -> list[Finding]:
    """Records that make a recovery refuse although every frame is sound: they are no events, or
    were removed."""
    return [
        Finding(DAMAGED, 0, 0, 0, one.first_lsn, one.last_lsn, one.what)
        for one in run.damage
        if one.lost and not one.segment and run.state in ("damaged", "unreadable")
    ]


def _call(call: OpenCall) -> dict[str, Json]:
    return {
        "type": "open_call",
        "lsn": call.lsn,
        "name": call.name,
        "tool": call.tool,
        "call_id": call.call_id,
        "step": call.step,
        "state": call.state,
    }


class _Findings:
    """Iterates over the findings of ``verify``; ``totals`` grow meanwhile."""

    def __init__(self, reader: LogReader, segment: int) -> None:
        self.totals = Totals()
        self._checking = verify(reader, segment, self.totals)

    def __iter__(self) -> Iterator[Finding]:
        return self._checking
