"""The command that compares runs: what it shows of a difference, and what it answers."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from logdump.diff.text import CONTEXT, DOTS, SHOWN_MAX, STRETCHES_MAX, Piece, pieces

from eventlog import EventLog
from recovery import CheckpointStore, RecoverableAgent, SyncRun, tool
from recovery.ops.fork import fork
from tests.cli.harness import call, raw

WORDS = st.lists(st.sampled_from(["a", "b", "cat", "dog", "é", ".", ", ", " ", "\n", "漢"]))
NASTY = "\x1b[31mred\x9b\u202e\r"

answer: dict[str, Any] = {}


@tool
def ask(question: str, **more: Any) -> Any:
    return answer["is"]


def asking(run: SyncRun) -> Any:
    for _step in run.steps():
        run.messages.append({"role": "tool", "content": run.call(ask, **run.task)})
        return "done"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    answer["is"] = "yes"
    return tmp_path


def made(store: Path, run_id: str, **task: Any) -> None:
    task.setdefault("question", "why")
    RecoverableAgent(asking, CheckpointStore(store), 1).run_with_recovery_sync(task, run_id)


def diff(store: Path, *args: str, code: int = 1) -> str:
    done = call("logdump", "diff", *args, cwd=store)
    assert done.code == code, done
    assert raw(done.out + done.err) == []
    return "\n".join(line.rstrip() for line in (done.out or done.err).splitlines())


# -- texts


@given(WORDS, WORDS)
def test_short_texts_are_there_whole_and_what_is_the_same_is_in_both(
    one: list[str], other: list[str]
) -> None:
    a, b = "".join(one)[:CONTEXT], "".join(other)[:CONTEXT]
    assume(a != b)
    left, right = pieces(a, b)
    assert ("".join(text for text, _ in left), "".join(text for text, _ in right)) == (a, b)
    same = [[text for text, differs in side if not differs] for side in (left, right)]
    assert "".join(same[0]) == "".join(same[1])
    assert any(differs for _, differs in [*left, *right])


@given(WORDS, WORDS)
def test_words_are_not_cut_apart(one: list[str], other: list[str]) -> None:
    a, b = (f"{' '.join(words)} end"[-CONTEXT:] for words in (one, other))
    assume(a != b)
    for side, text in zip(pieces(a, b), (a, b), strict=True):
        at = 0
        for part, _ in side:
            at += len(part)
            assert at in (0, len(text)) or not text[at - 1 : at + 1].isalnum()


def test_of_long_texts_the_places_that_differ_are_shown() -> None:
    a = " ".join(f"word{i}" for i in range(400))
    left, right = pieces(a, a.replace("word200", "other"))
    assert [text for text, differs in left if differs] == ["word200"]
    assert [text for text, differs in right if differs] == ["other"]
    assert length(left) < 2 * CONTEXT + 20 and DOTS in left[0][0] and DOTS in left[-1][0]


@pytest.mark.parametrize("b", ["y " * 3_000_000, "", "x " * 2_999_999 + "z"])
def test_what_is_shown_of_huge_texts_is_little(b: str) -> None:
    most = (2 * STRETCHES_MAX + 1) * (SHOWN_MAX + 2 * CONTEXT)
    for side in pieces("x " * 3_000_000, b):
        assert length(side) < most


def test_many_places_are_cut_off() -> None:
    rng = random.Random(1)
    a = [str(rng.random()) for _ in range(100)]
    left, _ = pieces(" ".join(a), " ".join(word if i % 3 else "x" for i, word in enumerate(a)))
    assert len(left) == 2 * STRETCHES_MAX + 2 and left[-1][0] == DOTS


def length(side: list[Piece]) -> int:
    return sum(len(text) for text, _ in side)


# -- the command


def test_a_long_argument_is_shown_where_it_differs(store: Path) -> None:
    long = "It was a day like any other. " * 40
    made(store, "a", question=f"{long}Was it Monday? {long}", tone={"kind": [1, True]})
    made(store, "b", question=f"{long}Was it Tuesday? {long}", tone={"kind": [1, 1]})
    shown = diff(store, "a", "b")
    assert "[-Monday-]" in shown and "{+Tuesday+}" in shown
    head, _, arguments = shown.partition("arguments of ask  LSN 3 | 3\n")
    assert "first divergence before the first step: task" in head
    assert "args[0]" in arguments and "tone.kind[1]\n  - true\n  + 1" in arguments
    assert len(shown) < 1500
    assert diff(store, "b", "b", code=0).endswith("no difference; 1 call alike")


def test_outcomes_and_messages_are_shown_with_their_places(store: Path) -> None:
    made(store, "a")
    answer["is"] = {"text": NASTY, "n": float("nan")}
    made(store, "b")
    answer["is"] = {"text": "red", "n": float("nan")}
    made(store, "c")
    shown = diff(store, "b", "c")
    assert "outcome of ask  LSN 4 | 4\n    text\n" in shown
    assert "messages[0].content.text" in shown
    assert "first divergence in step 1: outcome of ask\n" in shown
    shown = diff(store, "a", "b")
    assert '- "yes"\n  + {"text": "\\u001b[31mred' in shown and '"n": nan}' in shown


def test_a_fork_alone_is_compared_with_its_origin(store: Path) -> None:
    made(store, "a")
    fork(CheckpointStore(store), "a", "b", at_step=0, task={"question": "how"})
    RecoverableAgent(asking, CheckpointStore(store)).run_with_recovery_sync(
        {"question": "how"}, "b"
    )
    shown = diff(store, "b")
    assert shown.startswith("- a: 1 step") and "forked from a at the end of step 0" in shown
    assert diff(store / "b", ".").endswith(
        'args[0]\n  - "why"\n  + "how"\n\n2 differences; 0 calls alike'
    )
    assert "a is no fork: name the run to compare it with" in diff(store, "a", code=64)


@pytest.mark.parametrize("origin", ["../a", "/etc", "..", "a\x1b[2J"])
def test_where_a_fork_says_it_is_from_leads_nowhere_else(store: Path, origin: str) -> None:
    with EventLog.open(store / "evil") as log:
        link = {"run_id": origin, "uid": "u", "step": 0, "lsn": 1}
        started = {"run_id": "evil", "task": 1, "uid": "v", "forked_from": link}
        log.append("run_started", started)
    assert "the run it was forked from: run_id" in diff(store, "evil", code=32)


def test_json_says_all_that_is_shown(store: Path) -> None:
    made(store, "a", question="x" * 3000)
    answer["is"] = 7
    made(store, "b", question="x" * 3000)
    lines = [json.loads(line) for line in diff(store, "--json", "a", "b").splitlines()]
    assert [line["type"] for line in lines] == ["runs", "difference", "difference", "summary"]
    runs, outcome, messages, summary = lines
    assert (runs["a"]["steps"], runs["b"]["end"], runs["since"]) == (1, "finished", 0)
    assert (outcome["what"], outcome["call"], outcome["a"], outcome["b"]) == (
        "outcome",
        "ask",
        "yes",
        7,
    )
    assert (outcome["lsn_a"], outcome["lsn_b"]) == (4, 4)
    assert messages["b"] == [{"role": "tool", "content": 7}]
    assert summary == {"type": "summary", "differences": 2, "alike": 0}


def test_only_the_first_are_shown_and_all_when_they_are_asked_for(store: Path) -> None:
    made(store, "a", **{f"key{i}": i for i in range(20)})
    made(store, "b", **{f"key{i}": -i for i in range(20)})
    assert diff(store, "a", "b").endswith("38 differences (10 shown: --all); 0 calls alike")
    shown = diff(store, "--all", "a", "b")
    assert shown.endswith("38 differences; 0 calls alike") and shown.count("key19") == 2


@pytest.mark.parametrize("pattern", ["question", "ask", "*"])
def test_secrets_are_hidden(store: Path, pattern: str) -> None:
    answer["is"] = "topsecret"
    made(store, "a", question="topsecret")
    answer["is"] = "othersecret"
    made(store, "b", question="othersecret")
    patterns = ["--redact", pattern, "--redact", "task", "--redact", "messages"]
    for more in ([], ["--json"]):
        assert "secret" in diff(store, *more, "a", "b")
        shown = diff(store, *more, "--redact", "content", "--redact", "ask", *patterns, "a", "b")
        assert "secret" not in shown and "[redacted]" in shown


def test_logs_without_a_run_are_not_alike(store: Path) -> None:
    for name in ("a", "b"):
        with EventLog.open(store / name) as log:
            log.append("mine", name)
    assert "a: no agent has run in this log" in diff(store, "a", "b", code=32)
