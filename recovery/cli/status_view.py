"""Shows the status of a run, for people and as JSON."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches
from typing import Any

from rich.table import Table
from rich.text import Text

from recovery.cli.times import when
from recovery.errors import CHOICES
from recovery.inspect.states import BROKEN
from recovery.journal.user_code import is_the_users
from recovery.replay.error_counts import RunError
from recovery.reports import OpenCall, PendingMessage, RunStatus
from recovery.text import age, count, cut, duration, printable
from recovery.values.render import HIDDEN, Redaction, arguments_text, readable, short

# Styles of Rich for states and calls.
STYLES = {
    "running": "green",
    "finished": "green",
    "interrupted": "yellow",
    "in doubt": "bold red",
    "waiting": "cyan",
    "asks": "cyan",
    "parked": "yellow",
    "failed": "red",
    "damaged": "bold red",
    "unreadable": "bold red",
}
KINDS = {
    "conversation": "a conversation of Aden Hive: its program resumes it by opening it",
    "journal": "calls of a loop that has its own checkpoints: its program opens the journal again",
    "checkpoints": "checkpoints that a program saves itself: the program resumes by loading one",
}
VALUE_MAX = 400  # characters of a value
LINE_MAX = 120
SHOWN_MAX = 10  # messages in the inbox
TRACEBACK_LINES = 12

_FRAME = re.compile(r' *\|? *File "(.*)", line \d+')  # of a traceback

Row = tuple[str, str, str]  # label, text, style


def rows(one: RunStatus, now: float, redaction: Redaction) -> Iterator[Row]:
    """The rows for a run, the most important one first."""
    why = redaction.text(one.why, "why") if one.why else ""
    yield "run", one.run_id, "bold"
    yield "state", f"{one.state}{why and ': '}{why}", STYLES.get(one.state, "")
    if one.kind != "agent":
        yield "kind", KINDS[one.kind], ""
    yield "owner", _owner(one), ""
    if one.agent:
        yield "agent", one.agent, ""
    if one.packed_task is not None:
        yield "task", short(redaction.shown(readable(one.packed_task), "task"), VALUE_MAX), ""
    if one.traceback and not redaction.hides_any:
        yield from _quoted("error", _ending(one.traceback))
    if one.last:
        said = HIDDEN if redaction.hides_any else cut(_last(one), VALUE_MAX)
        ago = f"{when(one.last)}, {age(now - one.last)} ago"
        yield "last", f"LSN {one.last_lsn}, {ago}{said and ': '}{said}", ""
    yield from _failures(one, now, redaction)
    if one.progress.step or one.checkpoint:
        yield "step", _step(one), ""
    if one.state != "unreadable":
        yield "used", _used(one), ""
    if one.wake_at is not None:
        left = one.wake_at - now
        due = f"in {duration(left)}" if left > 0 else f"due since {age(-left)}: run it again"
        yield "wakes", f"{when(one.wake_at)}, {due}", "cyan"
    yield from _tail(one)
    if one.unclaimed_outcomes:
        yield (
            "REPAIRED",
            f"{unclaimed(one)}. Its call becomes in doubt: do not retry it",
            "bold red",
        )
    for call in one.calls:
        yield from _call(call, now, redaction)
    if one.inbox_damage:
        yield "INBOX", one.inbox_damage, "bold red"
    yield from _unread(one, now, redaction)


def _unread(one: RunStatus, now: float, redaction: Redaction) -> Iterator[Row]:
    for label, sent in zip(labels("inbox"), one.unread[:SHOWN_MAX], strict=False):
        match sent.kind:
            case "signal":
                value = redaction.shown(readable(sent.value or b"\xc0"), sent.about)
                what = f"signal {sent.about!r}: {short(value, LINE_MAX)}"
            case "cancel":
                what = "request to end the run"
            case decided:
                what = f"call {sent.about} {decided}"
        by = f" by {sent.who}" * bool(sent.who) + f" ({sent.why})" * bool(sent.why)
        then = "the run takes it when it is resumed" if sent.wanted else _unwanted(one, sent)
        style = "bold red" if sent.refused else "cyan"
        yield label, f"{what}{by}, {age(now - sent.timestamp)} ago: {then}", style
    if len(one.unread) > SHOWN_MAX:
        yield "", f"and {count(len(one.unread) - SHOWN_MAX, 'message')} more", ""


def _unwanted(one: RunStatus, sent: PendingMessage) -> str:
    """Why a message is pending that the run does not wait for now."""
    if sent.refused:
        return f"does not count: {sent.refused}"
    if sent.kind != "signal":
        return "too late"
    if other := waits_for_others(one, sent.about):
        return f"no wait is for it, {other}"
    if any(sent.about in call.signals for call in one.calls):
        return "too late for the present wait, kept for the next one"
    return "not asked for yet"


def waits_for_others(one: RunStatus, name: str) -> str:
    """The signals that a run waits for, if this one is not among them; else ""."""
    names = dict.fromkeys(name for call in one.calls for name in call.signals)
    if not names or name in names:
        return ""
    close = get_close_matches(name, names, 1)
    hint = f". Misspelt? It is close to {close[0]!r}" if close else ""
    return f"the run waits for {', '.join(map(repr, names))}{hint}"


def labels(name: str) -> Iterator[str]:
    """A label for only the first of several rows."""
    yield name
    while True:
        yield ""


def _owner(one: RunStatus) -> str:
    if one.owner is None:
        return "none so far"
    if one.owner.alive:
        return f"{one.owner}, has it"
    return f"none; last {one.owner}"


def _last(one: RunStatus) -> str:
    """The last event; an error only by its type, because it has rows of its own."""
    if one.error is not None and one.error.lsn == one.last_lsn:
        return f"the agent raised {one.error.type.removeprefix('builtins.')}"
    return one.last_event


def _error(one: RunStatus, error: RunError, now: float, redaction: Redaction) -> Iterator[Row]:
    """The last error of the agent's own code, and whether the run has got past it."""
    said = f": {HIDDEN if redaction.hides_any else error}" if one.why != str(error) else ""
    style = "" if error.is_past else "red"
    yield "error", f"LSN {error.lsn}, {age(now - error.timestamp)} ago{said}", style
    then = "the run has got further since" if error.is_past else "raised to the caller"
    if error.goes_on and not error.is_past:
        then = "recovered by its process"
    yield "", f"{then}; {count(error.total, 'error')} in all", ""
    if not error.is_past and not redaction.hides_any:
        lines = _ending(error.traceback)
        if one.diverged:  # what differs, and what is at stake
            lines = error.message.partition(CHOICES)[0].rstrip().split("\n")[1:]
        yield from _quoted("", lines)


def _failures(one: RunStatus, now: float, redaction: Redaction) -> Iterator[Row]:
    if one.crash_loop:
        yield "CRASHES", f"{one.crash_loop}, none got further", "bold red"
        yield "", "no error is recorded: killed from outside, out of memory, or by the tool", ""
    if one.error is not None:
        yield from _error(one, one.error, now, redaction)
    if one.quarantined:
        yield "workers", "leave it alone (quarantined); recovery resume resumes it", "bold red"


def _ending(traceback: str) -> list[str]:
    """The last lines of a traceback; where packages were called, from the user's last line on."""
    lines = traceback.rstrip().split("\n")
    places = [(i, one[1]) for i, line in enumerate(lines) if (one := _FRAME.match(line))]
    last = max((i for i, file in places if is_the_users(file)), default=len(lines))
    if last >= len(lines) - TRACEBACK_LINES:
        return lines[-TRACEBACK_LINES:]
    after = min(i for i, _ in places if i > last) if last < places[-1][0] else len(lines)
    theirs = lines[last : min(after, last + TRACEBACK_LINES // 2)]
    return [*theirs, "  ...", *lines[len(theirs) - TRACEBACK_LINES :]]


def _quoted(label: str, lines: list[str]) -> Iterator[Row]:
    for name, line in zip(labels(label), lines, strict=False):
        if line:
            yield name, f"| {line}", "dim"


def _step(one: RunStatus) -> str:
    behind = f"{count(one.replayed, 'record')} to replay"
    if one.checkpoint:
        point = f"checkpoint at the end of step {one.checkpoint_step} (LSN {one.checkpoint})"
    else:
        point = "no checkpoint"
    return f"{one.progress.step}; {point}, {behind}"


def _used(one: RunStatus) -> str:
    used = one.progress.usage
    parts = [count(used.steps, "step"), count(used.calls, "attempt")]
    if one.progress.failed:
        parts[-1] += f" ({one.progress.failed} failed)"
    if used.input_tokens or used.output_tokens:
        parts.append(f"{used.input_tokens:,} + {used.output_tokens:,} tokens")
    if used.cost:
        parts.append(f"cost {used.cost:,.6g}")
    parts.append(f"{duration(used.seconds)} at work")
    if one.recoveries:
        parts.append(f"recovered {one.recoveries}x")
    return ", ".join(parts)


def _tail(one: RunStatus) -> Iterator[Row]:
    if one.damage:
        for damage in one.damage:
            yield "DAMAGE", str(damage), "bold red"
        if one.state not in (*BROKEN, "running"):
            yield "", "harmless: a recovery needs nothing of it", ""
    if one.torn:
        text = f"torn: {one.torn} bytes after LSN {one.last_lsn} that were never acknowledged"
        yield "tail", f"{text}; the next opening cuts them off", "yellow"
    elif not one.damage:
        yield "tail", f"sound, up to LSN {one.last_lsn}", ""


def _call(call: OpenCall, now: float, redaction: Redaction) -> Iterator[Row]:
    style = STYLES.get(call.state, "")
    where = f"step {call.step}" if call.step is not None else "inside a call"
    attempt = f", attempt {call.attempt}" if call.attempt > 1 else ""
    named = f" id {call.call_id}" if call.call_id else ""
    yield call.state, f"{call.name}{named}, {where}{attempt}, {age(now - call.since)} ago", style
    yield "", arguments(call, redaction), ""
    yield "", f"idempotency key {call.idempotency_key or 'unknown: lost with the first record'}", ""
    yield "", f"recovery {call.then}", ""
    if call.elsewhere:
        yield "", call.elsewhere, "bold red"
    if call.unclaimed_outcomes:
        yield "", f"{unclaimed(call)}, maybe this one: a retry would repeat it", "bold red"


def unclaimed(one: RunStatus | OpenCall) -> str:
    """The outcomes whose calls were lost, in words."""
    lsns = ", ".join(f"LSN {lsn}" for lsn in one.unclaimed_outcomes)
    return f"{lsns}: outcome of a call that was lost"


def arguments(call: OpenCall, redaction: Redaction) -> str:
    """The arguments of a call, in a line."""
    if call.packed is None:
        return f"arguments of {call.size} bytes, recorded by digest"
    # Whole where a user is to approve it: the part that is cut away could be all that matters.
    width = None if call.state == "asks" else VALUE_MAX
    return arguments_text(redaction.shown(readable(call.packed), call.tool), width)


def grid(found: Iterable[Row]) -> Table:
    """Rows as a table that folds its texts into the width there is."""
    table = Table.grid(padding=(0, 1))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for label, text, style in found:
        table.add_row(label, Text(printable(text), style))
    return table


def lines(shown: Sequence[Row], label: str, commands: Sequence[str]) -> Iterator[str]:
    """The commands as lines below the rows. They are not to be folded."""
    width = max(len(label) for label, *_ in shown) + 1
    for i, command in enumerate(commands):
        yield f"{'' if i else label:<{width}}{printable(command)}"


def as_json_object(one: RunStatus, redaction: Redaction) -> dict[str, Any]:
    """The whole status as one JSON object."""
    used = one.progress.usage
    owner = one.owner
    return {
        "run_id": one.run_id,
        "kind": one.kind,
        "agent": one.agent,
        "agent_object": one.agent_object,
        "state": one.state,
        "why": redaction.text(one.why, "why"),
        "step": one.progress.step,
        "attempts": used.calls,
        "failed": one.progress.failed,
        "input_tokens": used.input_tokens,
        "output_tokens": used.output_tokens,
        "cost": used.cost,
        "seconds": used.seconds,
        "recoveries": one.recoveries,
        "started": one.started,
        "last": one.last,
        "wake_at": one.wake_at,
        "last_lsn": one.last_lsn,
        "checkpoint": one.checkpoint,
        "checkpoint_step": one.checkpoint_step,
        "replayed": one.replayed,
        "torn": one.torn,
        "damage": [str(found) for found in one.damage],
        "owner": None
        if owner is None
        else {
            "pid": owner.pid,
            "host": owner.host,
            "since": owner.since,
            "alive": owner.alive,
            "epoch": owner.epoch,
        },
        "traceback": HIDDEN if redaction.hides_any and one.traceback else one.traceback,
        "failed_call": one.failed_call,
        "failed_call_key": one.failed_call_key,
        "error": None if one.error is None else _error_json(one.error, redaction),
        "parent": one.parent.run_id if one.parent else None,
        "forked_from": one.forked_from.run_id if one.forked_from else None,
        "inbox_damage": one.inbox_damage,
        "signed": list(one.signed),
        "unclaimed_outcomes": list(one.unclaimed_outcomes),
        "crashes": one.crashes,
        "quarantined": one.quarantined,
        "diverged": one.diverged,
        "inbox": [_message_json(sent, redaction) for sent in one.unread],
        "open_calls": [_call_json(call, redaction) for call in one.calls],
    }


def _error_json(error: RunError, redaction: Redaction) -> dict[str, Any]:
    said = {
        name: HIDDEN if redaction.hides_any else getattr(error, name)
        for name in ("message", "traceback")
    }
    return {
        "type": error.type,
        **said,
        "step": error.step,
        "place": error.place,
        "in_a_row": error.in_a_row,
        "total": error.total,
        "lsn": error.lsn,
        "time": error.timestamp,
        "goes_on": error.goes_on,
        "is_past": error.is_past,
        "of_code": error.of_code,
        "call": error.call,
    }


def _call_json(call: OpenCall, redaction: Redaction) -> dict[str, Any]:
    shown = None if call.packed is None else redaction.shown(readable(call.packed), call.tool)
    return {
        "call": call.lsn,
        "tool": call.tool,
        "call_id": call.call_id,
        "step": call.step,
        "state": call.state,
        "then": call.then,
        "after_crash": call.after_crash,
        "attempt": call.attempt,
        "since": call.since,
        "idempotency_key": call.idempotency_key,
        "arguments": shown,
        "size": call.size,
        "child": call.child,
        "signals": list(call.signals),
        "signed": call.signed,
        "unclaimed_outcomes": list(call.unclaimed_outcomes),
        "elsewhere": call.elsewhere,
        "elsewhere_until": call.elsewhere_until,
    }


def _message_json(sent: PendingMessage, redaction: Redaction) -> dict[str, Any]:
    return {
        "lsn": sent.lsn,
        "time": sent.timestamp,
        "kind": sent.kind,
        "about": sent.about,
        "who": sent.who,
        "why": sent.why,
        "wanted": sent.wanted,
        "refused": sent.refused,
        "value": None if sent.value is None else redaction.shown(readable(sent.value), sent.about),
    }
