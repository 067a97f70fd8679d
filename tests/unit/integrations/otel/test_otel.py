"""Spans that are told live are those that an export of the log has: each once, and no others."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased, TraceIdRatioBased

from recovery import (
    CheckpointStore,
    InDoubtError,
    ParkedError,
    PermanentError,
    RecoverableAgent,
    Resolution,
    Retry,
    ToolError,
    Usage,
    tool,
)
from recovery.call_journal import CallJournal
from recovery.engine import live_spans
from recovery.engine.live_spans import LiveSpans
from recovery.errors import RunFailedError
from recovery.integrations.otel import SpanOptions, instrument
from tests.support.lives import Segmented
from tests.support.told_spans import Collected, by_id, exported, provider_of, told_live

OTHER = "a client library"


@tool(usage=lambda reply: Usage(reply["in"], 3))
async def ask(question: str, *, model: str) -> dict[str, Any]:
    await asyncio.sleep(0)
    return {"model": f"{model}-0613", "in": len(question), "id": "r-1", "stop_reason": "end_turn"}


@tool
def add(a: int, b: int) -> int:
    return a + b


@tool
async def later(number: int) -> int:
    await asyncio.sleep(0)
    return number


@tool
async def sum_up(*numbers: int) -> int:
    """Makes calls of its own."""
    return sum(await asyncio.gather(*(later(one) for one in numbers)))


@tool
def breaks(what: str) -> None:
    raise OSError(f"no {what}")


_TRIED: Counter[str] = Counter()


@tool(retry=Retry(attempts=3, delay_s=0))
def flaky(name: str) -> str:
    _TRIED[name] += 1
    if _TRIED[name] % 3:
        raise ConnectionError(f"lost {_TRIED[name] % 3}")
    return name


async def talkative(run: Any) -> str:
    async for step in run.steps():
        reply = await run.call(ask, "why?", model="m-1")
        await asyncio.gather(run.call(add, 1, step), run.call(sum_up, 1, 2, 3))
        run.messages.append(reply)
        try:
            await run.call(breaks, "disk")
        except (OSError, ToolError):
            await run.call(flaky, f"f{step}")
        if step == 3:
            return "done \ud83e\udda6"
    return ""


async def words(text: str) -> AsyncIterator[str]:
    for word in text.split():
        yield word


async def streams(run: Any) -> list[str]:
    found = [word async for word in run.stream(words, "a b c")]
    async with run.stream(words, "left half way") as stream:
        async for word in stream:
            found.append(word)
            break
    await run.sleep(0.001)
    return found


async def inner(run: Any) -> int:
    return int(await run.call(add, run.task, 1))


async def mother(run: Any) -> list[int]:
    return list(await asyncio.gather(*(run.child(inner, n) for n in (1, 2))))


def plain_agent(run: Any) -> int:
    with ThreadPoolExecutor(3) as pool:
        made = [pool.submit(copy_context().run, run.call, add, 1, n) for n in range(4)]
    for step in run.steps():
        run.call(add, step, step)
        if step == 3:
            break
    return sum(one.result() for one in made)


def gives_up(run: Any) -> None:
    run.call(add, 1, 1)
    raise PermanentError("it makes no sense")


@tool(retry=Retry(attempts=2, delay_s=0))
async def tries_again() -> None:
    """In its second attempt a call is made again that failed in the first."""
    if _TRIED["again"] % 2 == 0:
        _TRIED["again"] += 1
        await fails_first()
    _TRIED["again"] += 1
    await fails_first()


@tool
async def fails_first() -> None:
    if _TRIED["again"] % 2:
        raise ConnectionError


async def again(run: Any) -> None:
    await run.call(tries_again)


def start(agent: Any, place: Path, run_id: str = "run", task: Any = "t", **options: Any) -> Any:
    made = RecoverableAgent(agent, place, **options)
    return made.run_with_recovery_sync(task, run_id)["result"]


@pytest.mark.parametrize("content", [False, True])
@pytest.mark.parametrize("agent", [talkative, streams, plain_agent, gives_up, again])
def test_told_live_and_exported_later_are_the_same(
    tmp_path: Path, agent: Any, content: bool
) -> None:
    with told_live(SpanOptions(content=content)) as (told, _):
        if agent is gives_up:
            with pytest.raises(RunFailedError):
                start(agent, tmp_path)
        else:
            start(agent, tmp_path)
    live = by_id(told.spans)
    assert live == by_id(exported(tmp_path / "run", *(["--content"] if content else [])))
    assert len(live) >= 2
    contents = [key for span in told.spans for key in span["attributes"] if "arguments" in key]
    assert bool(contents) == content


def test_they_have_the_names_of_the_conventions(tmp_path: Path) -> None:
    with told_live(SpanOptions(agent="a", provider="openai")) as (told, _):
        start(talkative, tmp_path)
    names = Counter(span["name"] for span in told.spans)
    assert names["chat m-1"] == names["execute_tool flaky"] == 3
    assert names["invoke_agent a"] == 1 and names["execute_tool later"] == 9
    chat = next(span for span in told.spans if span["name"] == "chat m-1")
    about = chat["attributes"]
    assert chat["kind"] == 3 and about["gen_ai.provider.name"] == "openai"
    assert about["gen_ai.response.model"] == "m-1-0613" and about["gen_ai.response.id"] == "r-1"
    assert about["gen_ai.response.finish_reasons"] == ["end_turn"]
    assert about["gen_ai.usage.input_tokens"] == 4
    nested = {span["id"] for span in told.spans if span["name"] == "execute_tool sum_up"}
    assert sum(span["parent"] in nested for span in told.spans) == 9
    flaky_ = next(span for span in told.spans if span["name"] == "execute_tool flaky")
    assert [name for _, name, _ in flaky_["events"]] == ["exception", "retry"] * 2
    failed = next(span for span in told.spans if span["name"] == "execute_tool breaks")
    assert failed["error"] == "no disk" and failed["attributes"]["error.type"] == "OSError"


def test_children_are_in_the_trace_of_their_parent(tmp_path: Path) -> None:
    with told_live() as (told, _):
        start(mother, tmp_path)
    found = [one for run in sorted(tmp_path.glob("run*")) for one in exported(run)]
    assert by_id(told.spans) == by_id(found)
    assert len({span["trace"] for span in told.spans}) == 1
    assert len([span for span in told.spans if span["name"] == "invoke_agent"]) == 3


def test_a_fork_is_linked_to_the_trace_of_the_run_that_it_came_from(tmp_path: Path) -> None:
    start(plain_agent, tmp_path)
    CheckpointStore(tmp_path).run("run").fork("copy", at_step=2)
    with told_live() as (told, _):
        start(plain_agent, tmp_path, "copy")
    (run,) = (span for span in exported(tmp_path / "run") if span["name"] == "invoke_agent")
    assert told.spans[-1]["links"] == [[run["trace"], run["id"]]]
    assert by_id(told.spans) == by_id(exported(tmp_path / "copy"))


class DiesError(Exception):
    """As good as a crash: nothing is recorded, and nothing recovers from it here."""


def dies_once(agent: Any, after: int) -> tuple[Any, list[bool]]:
    """The agent, which stops for good in its first life, after so many steps."""
    died: list[bool] = []

    async def agent_(run: Any) -> Any:
        async for step in run.steps():
            await run.call(ask, f"{step}?", model="m")
            if step == after and not died:
                died.append(True)
                raise DiesError
            await run.call(add, step, 1)
            if step == 5:
                return step
        return 0

    return agent_, died


@pytest.mark.parametrize("after", [1, 2, 4])
@pytest.mark.parametrize("every", [1, 3, None])
def test_a_resumed_run_tells_the_rest(tmp_path: Path, after: int, every: int | None) -> None:
    agent, died = dies_once(talkative, after)
    with told_live() as (first, _), pytest.raises(DiesError):
        start(agent, tmp_path, checkpoint_every_n=every, max_recoveries=0)
    assert died and first.spans
    with CheckpointStore(tmp_path).claim("run") as log:
        log.append("of.another.library", b"")
    with told_live() as (second, _):
        assert start(agent, tmp_path, checkpoint_every_n=every) == 5
    whole = by_id(exported(tmp_path / "run"))
    assert by_id(first.spans + second.spans) == whole
    assert {span["trace"] for span in first.spans} == {span["trace"] for span in second.spans}
    run = next(span for span in second.spans if span["name"] == "invoke_agent")
    assert run["attributes"]["agent_eventlog.recoveries"] == 1
    assert run["start"] < min(span["end"] for span in first.spans)


@pytest.mark.usefixtures("at_once")
def test_a_resumed_run_says_which_records_are_removed(tmp_path: Path) -> None:
    lives: list[str] = []

    def agent(run: Any) -> None:
        lives.append("")
        for step in run.steps():
            run.call(add, "x" * 2000, str(step))
            if step == 30 and len(lives) == 1:
                raise KeyboardInterrupt
            if step == 31:
                break

    store: Any = CheckpointStore(Segmented(tmp_path), retention="latest_only")
    with pytest.raises(KeyboardInterrupt):
        start(agent, store, checkpoint_every_n=1)
    with told_live() as (told, _):
        start(agent, store)
    run, whole = told.spans[-1], by_id(exported(tmp_path / "run"))
    assert run["attributes"]["agent_eventlog.oldest_lsn"] > 1
    assert run == whole[run["id"]]


def test_a_run_that_recovers_in_its_process_tells_each_span_once(tmp_path: Path) -> None:
    agent, died = dies_once(talkative, 2)
    with told_live() as (told, _):
        assert start(agent, tmp_path) == 5
    assert died and by_id(told.spans) == by_id(exported(tmp_path / "run"))


def test_a_run_that_is_over_tells_nothing_when_it_is_asked_for_again(tmp_path: Path) -> None:
    start(plain_agent, tmp_path)
    with told_live() as (told, _):
        start(plain_agent, tmp_path)
    assert told.spans == []


@tool(needs_approval=True)
def pay(amount: int) -> str:
    return f"paid {amount}"


async def buyer(run: Any) -> str:
    await run.call(add, 1, 1)
    return str(await run.call(pay, 40))


def test_a_parked_run_tells_the_rest_when_it_goes_on(tmp_path: Path) -> None:
    with told_live() as (told, _), pytest.raises(ParkedError):
        start(buyer, tmp_path, park_after_s=0)
    assert [span["name"] for span in told.spans] == ["execute_tool add"]
    handle = CheckpointStore(tmp_path).run("run")
    (call,) = handle.pending()
    handle.approve(call, who="ann")
    with told_live() as (later, _):
        assert start(buyer, tmp_path) == "paid 40"
    assert by_id(told.spans + later.spans) == by_id(exported(tmp_path / "run"))
    paid, run = later.spans
    assert [name for _, name, _ in paid["events"]] == ["approved"]
    assert [name for _, name, _ in run["events"]] == ["run parked", "run resumed"]


@pytest.mark.parametrize(
    ("resolution", "state"),
    [
        (Resolution.outcome("sent by hand"), "resolved"),
        (Resolution.retry(), "returned"),
        (Resolution.fail("it cannot be"), "resolved"),
    ],
)
def test_a_call_that_a_person_resolves_is_told_by_who_goes_on(
    tmp_path: Path, resolution: Resolution, state: str
) -> None:
    lives: list[str] = []

    @tool
    def send(what: str) -> str:
        if len(lives) == 1:
            raise KeyboardInterrupt  # the process is killed here
        return what

    def agent(run: Any) -> str:
        lives.append("")
        try:
            return str(run.call(send, "x"))
        except ToolError:
            return "not sent"

    with told_live() as (first, _), pytest.raises(KeyboardInterrupt):
        start(agent, tmp_path)
    with told_live() as (second, _), pytest.raises(InDoubtError):
        start(agent, tmp_path)
    assert first.spans == second.spans == []
    handle = CheckpointStore(tmp_path).run("run")
    (call,) = handle.status().in_doubt
    handle.resolve(call.lsn, resolution, who="ann")
    with told_live() as (third, _):
        start(agent, tmp_path)
    assert by_id(third.spans) == by_id(exported(tmp_path / "run"))
    sent = next(span for span in third.spans if span["name"] == "execute_tool send")
    assert sent["attributes"]["agent_eventlog.call.state"] == state
    assert "resolved" in [name for _, name, _ in sent["events"]]


def test_a_call_that_its_policy_resolves_is_told_once(tmp_path: Path) -> None:
    lives: list[str] = []

    @tool(after_crash="report")
    def send(what: str) -> None:
        raise KeyboardInterrupt  # the process is killed here

    def agent(run: Any) -> None:
        lives.append("")
        run.call(send, "x")
        if len(lives) == 2:
            raise KeyboardInterrupt

    told: list[Any] = []
    for _ in range(2):
        with told_live() as (live, _), pytest.raises(KeyboardInterrupt):
            start(agent, tmp_path)
        told += live.spans
    assert [span["name"] for span in told] == ["execute_tool send"]
    with told_live() as (live, _):
        start(agent, tmp_path)
    assert by_id(told + live.spans) == by_id(exported(tmp_path / "run"))


def test_calls_of_a_foreign_loop_have_spans(tmp_path: Path) -> None:
    with told_live() as (told, _):
        for known in ([], ["c1"]):
            with CallJournal(tmp_path, "chat", known=known) as journal:
                for n in (1, 2):
                    journal.call_sync(add, n, n, call_id=f"c{n}")
    calls = [span for span in told.spans if "gen_ai.tool.call.id" in span["attributes"]]
    whole = by_id(exported(tmp_path / "chat"))
    assert all(whole[span["id"]] == span for span in calls)
    assert [s["attributes"]["gen_ai.tool.call.id"] for s in calls] == ["c1", "c2", "c1"]
    with told_live() as (told, _):
        with CallJournal(tmp_path, "empty") as journal:
            pass
        journal.close()  # once more
    assert by_id(told.spans) == by_id(exported(tmp_path / "empty"))


# -- spans of others


def test_what_another_library_tells_is_left_out(tmp_path: Path) -> None:
    with told_live(SpanOptions(without=["as*", "sum_up"])) as (told, _):
        start(talkative, tmp_path)
    options = ("--without", "as*", "--without", "sum_up")
    assert by_id(told.spans) == by_id(exported(tmp_path / "run", *options))
    names = {span["name"] for span in told.spans}
    assert not names & {"chat m-1", "execute_tool sum_up"}
    whole = {span["id"]: span for span in exported(tmp_path / "run")}
    steps = {span["id"] for span in told.spans if span["name"].startswith("step ")}
    inside = [
        s
        for s in told.spans
        if whole[whole[s["id"]]["parent"] or s["id"]]["name"] == "execute_tool sum_up"
    ]
    assert len(inside) == 9 and {span["parent"] for span in inside} <= steps
    run = told.spans[-1]["attributes"]
    assert run["gen_ai.usage.input_tokens"] == 12, "what it used counts"


def other_span(told: Collected, provider: TracerProvider, name: str) -> None:
    provider.get_tracer(OTHER).start_span(name).end()


@pytest.mark.parametrize("timeout_s", [None, 5.0])
@pytest.mark.parametrize("is_async", [False, True])
def test_spans_of_other_libraries_are_inside_those_of_the_run(
    tmp_path: Path, is_async: bool, timeout_s: Any
) -> None:
    told = Collected()
    provider = provider_of(told)

    @tool(timeout_s=timeout_s)
    def fetch(url: str) -> str:
        other_span(told, provider, url)
        return url

    @tool(timeout_s=timeout_s)
    async def fetch_async(url: str) -> str:
        await asyncio.sleep(0)
        other_span(told, provider, url)
        return url

    def agent(run: Any) -> None:
        other_span(told, provider, "in the agent")
        run.call(fetch, "a")

    async def agent_async(run: Any) -> None:
        other_span(told, provider, "in the agent")
        await asyncio.gather(run.call(fetch, "a"), run.call(fetch_async, "b"))
        other_span(told, provider, "in the agent")

    source = instrument(provider)
    try:
        with provider.get_tracer(OTHER).start_as_current_span("POST /chat"):
            start(agent_async if is_async else agent, tmp_path)
            other_span(told, provider, "after it")
    finally:
        source.stop()
    by_name = {span["name"]: span for span in told.spans}
    for tool_, url in [("fetch", "a")] + [("fetch_async", "b")] * is_async:
        around = next(s for s in told.of_runs() if s["name"] == f"execute_tool {tool_}")
        assert by_name[url]["parent"] == around["id"]
        assert by_name[url]["trace"] == around["trace"]
    run, request = by_name["invoke_agent"], by_name["POST /chat"]
    assert by_name["in the agent"]["parent"] == run["id"]
    assert by_name["after it"]["parent"] == request["id"]
    assert run["trace"] != request["trace"] and run["links"] == []
    assert request["links"] == [[run["trace"], run["id"]]]


@pytest.mark.parametrize(
    ("sampler", "count"),
    [(ALWAYS_OFF, 0), (ParentBased(TraceIdRatioBased(0.0)), 0), (TraceIdRatioBased(1.0), 2)],
)
def test_the_sampler_decides_for_the_whole_trace(tmp_path: Path, sampler: Any, count: int) -> None:
    told = Collected()
    provider = provider_of(told, sampler=sampler)

    @tool
    def fetch() -> None:
        other_span(told, provider, "GET")

    source = instrument(provider)
    try:
        start(lambda run: run.call(fetch), tmp_path)
    finally:
        source.stop()
    assert len(told.of_runs()) == count
    assert len(told.spans) == count + bool(count)


# -- what goes wrong


def test_a_receiver_that_fails_does_no_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from opentelemetry.sdk.trace import Tracer

    def raises(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("no exporter")

    with told_live() as (told, _):
        monkeypatch.setattr(Tracer, "start_span", raises)
        with caplog.at_level(logging.ERROR, "recovery"):
            assert start(plain_agent, tmp_path) == 10
    assert told.spans == []
    assert "no exporter" in caplog.text and "logdump otlp" in caplog.text


@pytest.mark.parametrize("what", ["attach", "detach"])
def test_what_cannot_be_entered_or_left_does_no_harm(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from recovery.integrations import otel

    def raises(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("no context")

    with told_live() as (told, _):
        monkeypatch.setattr(otel, what, raises)
        assert start(plain_agent, tmp_path) == 10
    assert by_id(told.spans) == by_id(exported(tmp_path / "run"))
    assert "no context" in caplog.text
    assert f"a span could not be {'entered' if what == 'attach' else 'left'}" in caplog.text


def test_a_resumed_run_does_not_wait_for_its_earlier_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow disk delays the spans, and no call."""
    agent, _ = dies_once(talkative, 4)
    with told_live() as (first, _), pytest.raises(DiesError):
        start(agent, tmp_path, max_recoveries=0)
    store = CheckpointStore(tmp_path)
    read = store.backend.read
    ended: list[bool] = []

    def slow(run_id: str) -> Any:
        while not ended:
            time.sleep(0.01)
        return read(run_id)

    with told_live() as (second, source):
        made = RecoverableAgent(agent, store)
        monkeypatch.setattr(store.backend, "read", slow)
        assert made.run_with_recovery_sync("t", "run")["result"] == 5
        assert second.spans == [] and not source.flush(0.01)
        ended.append(True)
    assert by_id(first.spans + second.spans) == by_id(exported(tmp_path / "run"))


def test_a_run_whose_log_is_gone_has_no_more_spans(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    agent, _ = dies_once(talkative, 4)
    with pytest.raises(DiesError):
        start(agent, tmp_path, max_recoveries=0)
    store = CheckpointStore(tmp_path)
    with told_live() as (told, _):
        made = RecoverableAgent(agent, store)
        monkeypatch.setattr(store.backend, "read", lambda run_id: None)
        assert made.run_with_recovery_sync("t", "run")["result"] == 5
    assert told.spans == []
    (said,) = [one for one in caplog.records if "no more spans" in one.getMessage()]
    assert said.getMessage().endswith("; `logdump otlp` makes the spans of its log")
    assert said.exc_info is not None and "run 'run' is gone" in str(said.exc_info[1])


def test_when_too_many_records_wait_a_run_has_no_more_spans(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(live_spans, "WAITING_MAX", 10)
    ended, taken = threading.Event(), LiveSpans.take
    monkeypatch.setattr(LiveSpans, "take", lambda run, item: ended.wait(60) and taken(run, item))

    @tool
    def span_here(number: int) -> int:
        return trace.get_current_span().get_span_context().span_id

    def agent(run: Any) -> list[int]:
        return [run.call(span_here, number) for number in range(9)]

    with told_live() as (told, _):
        inside = start(agent, tmp_path)
        ended.set()
    assert inside[0] != inside[1] and inside[-1] == inside[-2]  # at the end the run's
    assert len(told.spans) < 9
    (said,) = [one.getMessage() for one in caplog.records if "wait for" in one.getMessage()]
    assert said.startswith("run run: 10 records wait for their spans, or no thread can")


def test_a_process_is_instrumented_once(tmp_path: Path) -> None:
    with told_live(), pytest.raises(RuntimeError, match="another receiver"):
        instrument(provider_of(Collected()))
    start(plain_agent, tmp_path)  # by nobody any more


def test_a_provider_of_another_library_is_refused() -> None:
    with pytest.raises(TypeError, match=r"makes no tracers of opentelemetry\.sdk"):
        instrument(trace.ProxyTracerProvider())


def test_an_sdk_that_is_switched_off_costs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    source = instrument(TracerProvider())
    try:
        assert start(plain_agent, tmp_path) == 10
    finally:
        source.stop()


def test_patterns_are_a_list() -> None:
    with pytest.raises(TypeError, match="without is a list of patterns"):
        SpanOptions(without="ask")
