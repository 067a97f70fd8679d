"""Claude's tools are recorded: own ones never run twice, built-in ones are in doubt or known."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("claude_agent_sdk", reason="the extra `claude-agent`, of 365 MB")

from claude_agent_sdk import ClaudeAgentOptions, HookMatcher, query
from claude_agent_sdk import tool as claude_tool

from eventlog import EventLog
from recovery import CheckpointStore, InDoubtError, Resolution, tool
from recovery.call_journal import CallJournal
from recovery.integrations.claude_agent import RecordedTools, known_results
from tests.support import outside
from tests.support.fake_claude import FakeClaude, Use, transcript
from tests.support.framework_lives import AGAIN, fails_at_first, kills, meets
from tests.support.kill_sweep import RUNS, settle, sweep
from tests.support.lives import RUN

SCRIPT: list[list[Use]] = [
    [("Bash", {"command": "make"}), ("Read", {"file_path": "a.txt"})],
    [("mcp__mail__send", {"to": "ada"}), ("mcp__mail__look", {"what": "inbox"})],
    [("Write", {"file_path": "b"}), ("mcp__mail__send", {"to": "bob"})],
]


@claude_tool("send", "Sends a mail", {"to": str})
async def send(args: dict[str, Any]) -> dict[str, Any]:
    await asyncio.sleep(0)
    gives = outside.did(f"mail to {args['to']}", f"sent to {args['to']}")
    return {"content": [{"type": "text", "text": gives}]}


@claude_tool("look", "Looks around", {"what": str})
@tool(after_crash="retry")
async def look(args: dict[str, Any]) -> dict[str, Any]:
    if args["what"] == "nowhere":
        raise ValueError("there is no such place")
    return {"content": [{"type": "text", "text": f"saw {args['what']}"}]}


@claude_tool("bill", "Sends a bill", {"to": str})
@tool(**AGAIN)
async def bill(args: dict[str, Any]) -> dict[str, Any]:
    fails_at_first()
    return {"content": [{"type": "text", "text": f"billed {args['to']}"}]}


@claude_tool("post", "Posts a letter: two in each turn", {"to": str})
async def post(args: dict[str, Any]) -> dict[str, Any]:
    await meets("post", "post")
    gives = outside.did(f"letter to {args['to']}", f"posted to {args['to']}")
    return {"content": [{"type": "text", "text": gives}]}


@claude_tool("refund", "Refunds, when a person has approved it", {"cents": int})
@tool(needs_approval=True)
async def refund(args: dict[str, Any]) -> dict[str, Any]:
    gives = outside.did(f"refund {args['cents']}", f"refunded {args['cents']}")
    return {"content": [{"type": "text", "text": gives}]}


TOOLS = [send, look, bill, post, refund]


async def talk(
    place: Path, script: list[list[Use]] = SCRIPT, *, old: bool = False, **options: Any
) -> FakeClaude:
    known = [one["id"] for one in transcript(place)]
    fake = FakeClaude(place, script, old=old, **options)
    with CallJournal(place / RUNS, RUN, known=known, park_after_s=0) as journal:
        tools = RecordedTools(journal)
        asked = tools.options(ClaudeAgentOptions(mcp_servers={"mail": tools.server("mail", TOOLS)}))
        async for _ in tools.watch(query(prompt="go", options=asked, transport=fake)):
            pass
    return fake


def made(place: Path) -> Counter[str]:
    outside.moved_to(place)
    return outside.counted()


EFFECTS = Counter(
    [
        'Bash {"command": "make"}',
        'Write {"file_path": "b"}',
        "mail to ada",
        "mail to bob",
    ]
)


def test_calls_and_results_are_in_the_log(tmp_path: Path) -> None:
    outside.moved_to(tmp_path)
    fake = asyncio.run(talk(tmp_path))
    assert made(tmp_path) == EFFECTS
    assert "sent to ada" in fake.seen and "saw inbox" in fake.seen
    calls, outcomes = {}, {}
    for event in CheckpointStore(tmp_path / RUNS).run(RUN).events(until="now"):
        if event.kind == "call":
            calls[event.call] = event.tool, event.call_id
        elif event.kind == "outcome":
            outcomes[event.call] = event.value
    names = Counter(name for name, _ in calls.values())
    assert names == {"Bash": 1, "Write": 1, "send": 2, "look": 1}
    assert all(call_id.startswith("toolu_") for _, call_id in calls.values())
    assert outcomes.keys() == calls.keys()
    bash = next(lsn for lsn, (name, _) in calls.items() if name == "Bash")
    assert outcomes[bash] == "Bash did {'command': 'make'}"


def test_two_equal_uses_in_one_turn_are_two_calls(tmp_path: Path) -> None:
    outside.moved_to(tmp_path)
    same: Use = ("mcp__mail__send", {"to": "ada"})
    asyncio.run(talk(tmp_path, [[same, same]]))
    assert made(tmp_path) == {"mail to ada": 2}


def test_an_error_of_a_tool_reaches_the_model_and_the_log(tmp_path: Path) -> None:
    outside.moved_to(tmp_path)
    script: list[list[Use]] = [[("mcp__mail__look", {"what": "nowhere"}), ("Bash", {"c": "x"})]]
    fake = asyncio.run(talk(tmp_path, script, fails=("Bash",)))
    assert "there is no such place" in fake.seen
    events = CheckpointStore(tmp_path / RUNS).run(RUN).events(until="now")
    assert sorted(event.tool for event in events if event.kind == "failure") == ["Bash", "look"]


def test_what_the_user_does_not_permit_is_in_no_doubt(tmp_path: Path) -> None:
    outside.moved_to(tmp_path)
    asyncio.run(talk(tmp_path, denies=("Bash",)))
    assert made(tmp_path) == EFFECTS - Counter(['Bash {"command": "make"}'])
    assert CheckpointStore(tmp_path / RUNS).run(RUN).status().in_doubt == ()


@pytest.mark.parametrize("tells_ids", [True, False])
def test_an_own_tool_that_was_denied_gives_its_id_to_no_other_call(
    tells_ids: bool, tmp_path: Path
) -> None:
    outside.moved_to(tmp_path)
    script: list[list[Use]] = [[("mcp__mail__send", {"to": "ada"})]] * 2
    asyncio.run(talk(tmp_path, script, denies=("mcp__mail__send",), tells_ids=tells_ids))
    denied, _ = transcript(tmp_path)
    (tmp_path / "transcript").write_text(json.dumps(denied) + "\n")  # the CLI died before it knew
    asyncio.run(talk(tmp_path, script))
    assert made(tmp_path) == {"mail to ada": 1}


def test_no_tool_is_executed_whose_intent_cannot_be_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside.moved_to(tmp_path)
    append = EventLog.append

    def full(log: EventLog, kind: str, *args: Any, **kwargs: Any) -> int:
        if kind == "call":
            raise OSError(28, "No space left on device")
        return append(log, kind, *args, **kwargs)

    monkeypatch.setattr(EventLog, "append", full)
    with pytest.raises(OSError, match="No space left"):
        asyncio.run(talk(tmp_path))
    assert made(tmp_path) == {}


def test_hooks_of_the_user_stay(tmp_path: Path) -> None:
    async def theirs(given: Any, tool_use_id: Any, context: Any) -> Any:
        return {}

    with CallJournal(tmp_path, RUN) as journal:
        mine = HookMatcher(matcher="Bash", hooks=[theirs])
        options = RecordedTools(journal).options(ClaudeAgentOptions(hooks={"PreToolUse": [mine]}))
    assert options.hooks is not None
    first, second = options.hooks["PreToolUse"]
    assert second is mine and first.on_failure == "block"
    assert {*options.hooks} == {"PreToolUse", "PostToolUse", "PostToolUseFailure"}


def test_a_cli_that_does_not_fail_closed_is_refused(tmp_path: Path) -> None:
    outside.moved_to(tmp_path)
    with pytest.raises(Exception, match="does not honor on_failure"):
        asyncio.run(talk(tmp_path, old=True))
    assert made(tmp_path) == {}


def test_a_built_in_tool_that_was_interrupted_is_reported(tmp_path: Path) -> None:
    outside.moved_to(tmp_path)

    async def first() -> None:
        with CallJournal(tmp_path / RUNS, RUN) as journal:
            tools = RecordedTools(journal)
            given = {"tool_name": "Bash", "tool_input": {"command": "make"}, "tool_use_id": "t1"}
            assert await tools.before(given, "t1", None) == {}
            journal.close()  # the process dies

    async def second() -> dict[str, Any]:
        with CallJournal(tmp_path / RUNS, RUN, known=[]) as journal:
            (call,) = journal.in_doubt()
            assert (call.tool, call.call_id, call.args) == ("Bash", "t1", ({"command": "make"},))
            tools = RecordedTools(journal)
            given = {"tool_name": "Bash", "tool_input": {"command": "make"}, "tool_use_id": "t2"}
            return await tools.before(given, "t2", None)

    asyncio.run(first())
    with pytest.raises(InDoubtError):
        asyncio.run(second())
    handle = CheckpointStore(tmp_path / RUNS).run(RUN)
    (call,) = handle.status().in_doubt
    handle.resolve(call, Resolution.outcome("it was made"))

    async def third() -> dict[str, Any]:
        with CallJournal(tmp_path / RUNS, RUN, known=[]) as journal:
            tools = RecordedTools(journal)
            given = {"tool_name": "Bash", "tool_input": {"command": "make"}, "tool_use_id": "t3"}
            return await tools.before(given, "t3", None)

    said = asyncio.run(third())["hookSpecificOutput"]
    assert said["permissionDecision"] == "deny"
    assert "it was made" in said["permissionDecisionReason"]


def test_a_session_that_does_not_exist_has_no_results() -> None:
    assert known_results("550e8400-e29b-41d4-a716-446655440000") == []


# -- killed anywhere


# Compared are all uses of tools in the conversation with their results, and effects outside. Left
# out: the ids of uses, which the model draws anew; that a built-in tool is denied whose result is
# known, and the sentence in front of that. The CLI makes the requests: they cannot be compared. The
# SDK's tools do not stream. The approval is of this library; that of the CLI is asked in the CLI.

WHOLE: list[list[Use]] = [
    *SCRIPT,
    [("mcp__mail__look", {"what": "nowhere"}), ("mcp__mail__bill", {"to": "ada"})],
    [("mcp__mail__look", {"what": "outbox"}), ("mcp__mail__refund", {"cents": 3})],
    [("mcp__mail__post", {"to": "ada"}), ("mcp__mail__post", {"to": "bob"})],
]


def live(place: Path) -> Any:
    asyncio.run(talk(place, WHOLE))
    return sorted(map(result_of, transcript(place)))


def result_of(use: dict[str, Any]) -> str:
    served, _, text = use["text"].rpartition("before a crash. Its result: ")
    return f"{use['name']} {use['input']}: {text} {use['is_error'] and not served}"


def look_outside(place: Path, how: str) -> None:
    """A person resolves built-in tools by what they have left."""
    if how == "WaitingError":
        return settle(place, how)
    with CallJournal(place / RUNS, RUN) as journal:
        doubts = journal.in_doubt()
    handle = CheckpointStore(place / RUNS).run(RUN)
    found = {what: gives for _, what, gives, _ in outside.effects()}
    others = False
    for call in doubts:
        if call.tool in ("Bash", "Write"):
            what = f"{call.tool} {json.dumps(call.args[0])}"
            gives = Resolution.outcome(found[what]) if what in found else Resolution.retry()
            handle.resolve(call, gives)
        else:
            others = True
    if others:
        settle(place, how)


@kills(6)
def test_killed_anywhere_no_tool_runs_twice(
    points: int, tmp_path: Path, rng: random.Random
) -> None:
    found = sweep(live, tmp_path, rng, points=points, settle=look_outside)
    assert found.bad == []
    assert found.doubted or found.points < 2 * found.appends  # a few may all miss the tools
