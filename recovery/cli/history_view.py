"""Shows the history of a run: its last events, its last resumption, its children."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from eventlog import Damage, ReadableLog
from recovery import CheckpointStore, RecoveryError
from recovery.cli.event_lines import line
from recovery.cli.status_view import Row, labels
from recovery.cli.times import when
from recovery.history.find_run import reader_of
from recovery.inspect.follow import events
from recovery.journal.encoding import decode_shallow
from recovery.journal.events import CallIntended, Event, RunResumed
from recovery.replay.children import children_of
from recovery.reports import ChildRun, RunEvent, RunStatus
from recovery.text import age, cut
from recovery.values.pack import pack
from recovery.values.render import Redaction, readable, short

RECENT = 6  # events shown
FAMILY_MAX = 100_000  # records that are searched for child runs
LOOKED_AT = 200  # records that are searched for the agent's last words
SAID_SIZE_MAX = 1 << 20  # bytes of messages that are decoded for that
SHOWN_MAX = 10  # children
LINE_MAX = 120

# The kinds of records of children, and of resumptions.
_FAMILY = {"call", "child", "outcome", "failure", "resolved", "retry", "abandoned"}


@dataclass(slots=True)
class Story:
    """``resumed``: LSN, time and record of the last resumption. ``said``: the agent's last words,
    as a readable value. ``children``: those that began in the last FAMILY_MAX records."""

    recent: list[RunEvent] = field(default_factory=list)
    resumed: tuple[int, float, RunResumed] | None = None
    said: Any = None
    children: list[ChildRun] = field(default_factory=list)
    harmless: list[Damage] = field(default_factory=list)  # that the status does not have
    skipped: int = 0  # records that were not searched for children


def read_story(store: CheckpointStore, one: RunStatus) -> Story:
    """Reads the end of the log, twice; keeps what is shown."""
    story = Story()
    if one.state == "unreadable":
        return story
    with reader_of(store, one.run_id) as reader:
        story.skipped = max(0, one.last_lsn - FAMILY_MAX)
        story.children = children_of(_family(reader, story, story.skipped))
        story.harmless = [each for each in story.harmless if each.last_lsn < one.checkpoint]
    recent: deque[RunEvent] = deque(maxlen=RECENT)
    after = max(0, one.last_lsn - LOOKED_AT)
    for event in events(store, one.run_id, after=after, until="now"):
        if event.kind not in ("messages", "value"):
            recent.append(event)
        if event.kind == "messages" and event.size <= SAID_SIZE_MAX:
            with suppress(RecoveryError, ValueError):  # lost, or of types that are missing here
                story.said = _last_words(event.value) or story.said
    story.recent = list(recent)
    return story


def children_known(store: CheckpointStore, run: str) -> list[ChildRun]:
    """``RunHandle.children``, also of a damaged log and without the types in it."""
    with reader_of(store, run) as reader:
        return children_of(_family(reader, Story()))


def _family(
    reader: ReadableLog, story: Story, after: int = 0
) -> Iterator[tuple[int, Event | None]]:
    """The children; notes the last resumption on the way."""
    calls: set[int] = set()
    for record in reader.records(after + 1, on_damage=story.harmless.append):
        if record.kind == RunResumed.kind:
            with suppress(ValueError):
                resumed = decode_shallow(record)
                assert isinstance(resumed, RunResumed)
                story.resumed = record.lsn, record.time_ns / 1e9, resumed
        elif record.kind == CallIntended.kind or (calls and record.kind in _FAMILY):
            with suppress(ValueError):
                event = decode_shallow(record)
                if isinstance(event, CallIntended) and event.child:
                    calls.add(record.lsn)
                if record.lsn in calls or getattr(event, "call", 0) in calls:
                    yield record.lsn, event


def _last_words(new: Any) -> Any:
    for message in reversed(new):
        if isinstance(message, dict) and message.get("role") == "assistant":
            return readable(pack(message.get("content"), "content"))
    return None


def rows(one: RunStatus, story: Story, now: float, redaction: Redaction) -> Iterator[Row]:
    """The rows after those of the status."""
    if story.said:
        yield "said", short(redaction.shown(story.said, "content"), LINE_MAX * 2), ""
    if story.resumed is not None:
        lsn, at, resumed = story.resumed
        behind = f"the checkpoint at the end of step {resumed.from_step}"
        yield (
            "resumed",
            f"{when(at)}, {age(now - at)} ago, recovery {resumed.recovery} (LSN "
            f"{lsn}), from {behind if resumed.from_step else 'the beginning'}",
            "",
        )
    for label, event in zip(labels("recent"), story.recent, strict=False):
        told = cut(line(event, redaction), LINE_MAX)
        if event.kind == "agent_raised":  # the rows of the error have the rest
            told = f"the agent raised {event.error.partition(':')[0]}"
        yield label, f"{when(event.timestamp)[11:]}  LSN {event.lsn}: {told}", ""
    for label, damage in zip(labels("damage"), story.harmless[:SHOWN_MAX], strict=False):
        needless = f"a recovery begins at step {one.checkpoint_step}, and needs nothing of it"
        yield label, f"{damage}. Harmless: {needless}; a fork to before may", "yellow"
    if one.parent is not None:
        yield "parent", f"{one.parent.run_id}, which started it (LSN {one.parent.lsn})", ""
    if (link := one.forked_from) is not None:
        by = f" by {link.who}" * bool(link.who) + f": {link.why}" * bool(link.why)
        yield "forked", f"from {link.run_id} at the end of step {link.step}{by}", ""
    for label, child in zip(labels("child"), story.children[:SHOWN_MAX], strict=False):
        yield label, f"{child.run_id}: {child.state}", ""
    if len(story.children) > SHOWN_MAX:
        yield "", f"and {len(story.children) - SHOWN_MAX} more", ""
    if story.skipped:
        children = f"store.run({one.run_id!r}).children() reads all"
        yield "", f"child runs up to LSN {story.skipped:,} are not shown: {children}", "dim"


def as_json_object(story: Story, redaction: Redaction) -> dict[str, Any]:
    """The history as JSON."""
    resumed = None
    if story.resumed is not None:
        lsn, at, event = story.resumed
        resumed = {"lsn": lsn, "time": at, "recovery": event.recovery, "from_step": event.from_step}
    return {
        "said": redaction.shown(story.said, "content"),
        "resumed": resumed,
        "harmless_damage": [str(one) for one in story.harmless],
        "recent": [
            {"lsn": one.lsn, "time": one.timestamp, "kind": one.kind, "text": line(one, redaction)}
            for one in story.recent
        ],
        "children": [
            {"run_id": one.run_id, "state": one.state, "call": one.call, "agent": one.agent}
            for one in story.children
        ],
    }
