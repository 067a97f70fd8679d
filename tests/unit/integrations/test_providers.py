"""Clients of OpenAI and Anthropic in a run: asked once, served as the SDK's own, byte for byte."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any, cast

import anthropic
import httpx
import httpx2
import openai
import pydantic
import pytest

from recovery import CheckpointStore, RecoverableAgent, Resolution, Run, SyncRun, tool
from recovery.errors import DivergenceError, InDoubtError
from recovery.integrations.anthropic import recorded_client as recorded_anthropic
from recovery.integrations.openai import recorded_client as recorded_openai
from recovery.journal.events import CallIntended, CallReturned
from tests.support.lives import RUN, Died, after_death, disk_store, recorded, run, run_sync
from tests.support.providers import Provider, completion, message, response

ASKED: Any = [{"role": "user", "content": "hello"}]


class Answer(pydantic.BaseModel):
    text: str


def dumped(value: Any) -> Any:
    """All of an SDK's value: its type, the fields that were set, and the id of its request."""
    if isinstance(value, list | tuple):
        return [dumped(one) for one in value]
    if isinstance(value, pydantic.BaseModel):
        name = f"{type(value).__module__}.{type(value).__qualname__}"
        found = value.model_dump(mode="json", exclude_unset=True, warnings=False)
        return [name, found, getattr(value, "_request_id", None)]
    return value


# -- requests: of a client, plain ...


def chat(client: Any, **more: Any) -> Any:
    return client.chat.completions.create(model="m", messages=ASKED, **more)


def chat_stream(client: Any) -> Any:
    with chat(client, stream=True, stream_options={"include_usage": True}) as stream:
        return [type(stream).__name__, *stream]


def chat_helper(client: Any) -> Any:
    with client.chat.completions.stream(model="m", messages=ASKED) as stream:
        events = [type(event).__name__ for event in stream]
        return [*events, stream.get_final_completion()]


def chat_parsed(client: Any) -> Any:
    parsed = client.chat.completions.parse(model="m", messages=ASKED, response_format=Answer)
    return [parsed, parsed.choices[0].message.parsed]


def chat_raw(client: Any) -> Any:
    raw = client.chat.completions.with_raw_response.create(model="m", messages=ASKED)
    return [raw.status_code, raw.request_id, raw.parse()]


def responses(client: Any, **more: Any) -> Any:
    return client.responses.create(model="m", input="hello", **more)


def responses_stream(client: Any) -> Any:
    return list(responses(client, stream=True))


def responses_helper(client: Any) -> Any:
    with client.responses.stream(model="m", input="hello") as stream:
        return [[type(event).__name__ for event in stream], stream.get_final_response()]


def embeddings(client: Any) -> Any:
    return client.embeddings.create(model="e", input="x", encoding_format="float")


def models(client: Any) -> Any:
    return list(client.models.list())


def messages(client: Any, **more: Any) -> Any:
    return client.messages.create(model="c", max_tokens=10, messages=ASKED, **more)


def messages_stream(client: Any) -> Any:
    with messages(client, stream=True) as stream:
        return [type(stream).__name__, *stream]


def messages_helper(client: Any) -> Any:
    with client.messages.stream(model="c", max_tokens=10, messages=ASKED) as stream:
        return [list(stream.text_stream), stream.get_final_message()]


def messages_raw(client: Any) -> Any:
    raw = client.messages.with_raw_response.create(model="c", max_tokens=10, messages=ASKED)
    return [raw.status_code, raw.request_id, raw.parse()]


def beta_messages(client: Any) -> Any:
    return client.beta.messages.create(model="c", max_tokens=10, messages=ASKED, betas=["b"])


def count_tokens(client: Any) -> Any:
    return client.messages.count_tokens(model="c", messages=ASKED)


# ... and async


async def chat_stream_async(client: Any) -> Any:
    async with await chat(client, stream=True) as stream:
        return [type(stream).__name__, *[chunk async for chunk in stream]]


async def chat_helper_async(client: Any) -> Any:
    async with client.chat.completions.stream(model="m", messages=ASKED) as stream:
        events = [type(event).__name__ async for event in stream]
        return [*events, await stream.get_final_completion()]


async def responses_stream_async(client: Any) -> Any:
    return [event async for event in await responses(client, stream=True)]


async def models_async(client: Any) -> Any:
    return [one async for one in client.models.list()]


async def messages_stream_async(client: Any) -> Any:
    async with await messages(client, stream=True) as stream:
        return [type(stream).__name__, *[event async for event in stream]]


async def messages_helper_async(client: Any) -> Any:
    async with client.messages.stream(model="c", max_tokens=10, messages=ASKED) as stream:
        return [[text async for text in stream.text_stream], await stream.get_final_message()]


PLAIN: dict[str, Callable[[Any], Any]] = {
    one.__name__: one
    for one in (
        *(chat, chat_stream, chat_helper, chat_parsed, chat_raw, responses, responses_stream),
        *(responses_helper, embeddings, models, messages, messages_stream, messages_helper),
        *(messages_raw, beta_messages, count_tokens),
    )
}
ASYNC: dict[str, Callable[[Any], Any]] = {
    one.__name__: one
    for one in (
        *(chat, chat_stream_async, chat_helper_async, responses, responses_stream_async),
        *(embeddings, models_async, messages, messages_stream_async, messages_helper_async),
        *(beta_messages, count_tokens),
    )
}
STRUCTURED = completion(json.dumps({"text": "parsed"}))


def is_of_anthropic(name: str) -> bool:
    return "messages" in name or name == "count_tokens"


@pytest.fixture
def provider() -> Provider:
    return Provider()


def prepared(provider: Provider, name: str) -> None:
    if name == "chat_parsed":
        provider.next.append(lambda body: httpx2.Response(200, json=STRUCTURED))


@pytest.mark.parametrize("name", PLAIN)
def test_a_plain_client_is_served_what_it_was_answered(name: str, provider: Provider) -> None:
    plain: Any = provider.anthropic_client() if is_of_anthropic(name) else provider.openai_client()
    prepared(provider, name)
    expected = dumped(PLAIN[name](plain))
    sent, provider.bodies = provider.bodies, []
    prepared(provider, name)
    wrap: Any = recorded_anthropic if is_of_anthropic(name) else recorded_openai
    client = wrap(plain)
    found: list[Any] = []

    def agent(run: SyncRun) -> None:
        found.append(dumped(PLAIN[name](client)))
        if run.recovery_count == 0:
            raise OSError("once more")

    run_sync(agent, CheckpointStore())
    assert found == [expected, expected]
    assert provider.bodies == sent
    assert all(stream.closed for stream in provider.streams)


@pytest.mark.parametrize("name", ASYNC)
def test_an_async_client_is_served_what_it_was_answered(name: str, provider: Provider) -> None:
    def plain() -> Any:
        of_anthropic = is_of_anthropic(name)
        return provider.async_anthropic_client() if of_anthropic else provider.async_openai_client()

    async def unrecorded() -> Any:
        return dumped(await ASYNC[name](plain()))

    expected = asyncio.run(unrecorded())
    sent, provider.bodies = provider.bodies, []
    wrap: Any = recorded_anthropic if is_of_anthropic(name) else recorded_openai
    client, found = wrap(plain()), list[Any]()

    async def agent(run: Run) -> None:
        found.append(dumped(await ASYNC[name](client)))
        if run.recovery_count == 0:
            raise OSError("once more")

    run(agent, CheckpointStore())
    assert found == [expected, expected]
    assert provider.bodies == sent
    assert all(stream.closed for stream in provider.streams)


# -- what is in the log


def test_the_log_has_the_body_that_was_sent_and_the_one_that_came(provider: Provider) -> None:
    client, store = recorded_openai(provider.openai_client()), CheckpointStore()

    def agent(run: SyncRun) -> Any:
        said = client.chat.completions.create(model="m", messages=ASKED)
        history: Any = [*ASKED, said.choices[0].message]  # the SDK's own model, put back
        client.chat.completions.create(model="m", messages=history, temperature=0.5)
        return run.usage().tokens

    assert run_sync(agent, store)["result"] == 10
    first, second = recorded(store, CallIntended)
    assert [first.tool, second.tool] == ["openai.chat.completions"] * 2
    assert [one.args for one in (first, second)] == [[[], body] for body in provider.bodies]
    assert set(provider.bodies[0]) == {"model", "messages"}
    assert [one.value for one in recorded(store, CallReturned)] == [
        {**completion(), "_request_id": f"req_{at}"} for at in (1, 2)
    ]


def test_the_log_has_what_anthropic_was_sent(provider: Provider) -> None:
    client, store = recorded_anthropic(provider.anthropic_client()), CheckpointStore()
    pay: Any = {"name": "pay", "input_schema": {"type": "object"}, "cache_control": None}

    def agent(run: SyncRun) -> Any:
        said = messages(client, system="be brief", tools=[pay], stop_sequences=anthropic.omit)
        history: Any = [*ASKED, {"role": "assistant", "content": said.content}]
        once = (one for one in history)  # an iterable that gives each item once
        client.messages.create(model="c", max_tokens=10, messages=once)

    run_sync(agent, store)
    assert [one.args for one in recorded(store, CallIntended)] == [
        [[], body] for body in provider.bodies
    ]
    assert len(provider.bodies[1]["messages"]) == 2
    assert [one.value for one in recorded(store, CallReturned)] == [
        {**message(), "_request_id": f"req_{at}"} for at in (1, 2)
    ]


@pytest.mark.parametrize("kind", ["openai", "responses", "anthropic"])
def test_usage_is_fed_to_budgets_also_of_streams(kind: str, provider: Provider) -> None:
    asks: Any = {"openai": chat, "responses": responses, "anthropic": messages}[kind]
    if kind == "anthropic":
        client: Any = recorded_anthropic(provider.anthropic_client())
    else:
        client = recorded_openai(provider.openai_client())
    more = {"stream_options": {"include_usage": True}} if kind == "openai" else {}

    def agent(run: SyncRun) -> Any:
        asks(client)
        once = run.usage()
        for _ in asks(client, stream=True, **more):
            pass
        twice = run.usage()
        return [once.input_tokens, once.output_tokens, twice.input_tokens, twice.output_tokens]

    given = 4 if kind == "anthropic" else 3  # with what was read from the cache
    assert run_sync(agent, CheckpointStore())["result"] == [given, 2, 2 * given, 4]


def test_a_stream_that_its_reader_leaves_is_recorded_as_far_as_it_was_read(
    provider: Provider,
) -> None:
    client, store, read = recorded_anthropic(provider.anthropic_client()), CheckpointStore(), []

    def agent(run: SyncRun) -> Any:
        with messages(client, stream=True) as stream:
            read.append([event.type for event, _ in zip(stream, range(3), strict=False)])
        if run.recovery_count == 0:
            raise OSError("once more")

    run_sync(agent, store)
    (outcome,) = recorded(store, CallReturned)
    assert read[0] == read[1] and len(outcome.value["events"]) <= 5
    assert len(provider.bodies) == 1 and provider.streams[0].closed


@pytest.mark.parametrize("name", ["chat_stream_async", "chat_helper_async"])
def test_an_answer_that_stays_open_behind_its_last_event_is_served(
    name: str, provider: Provider
) -> None:
    """The SDK reads on for a moment there, and cancels that."""
    client, found = recorded_openai(provider.async_openai_client()), list[Any]()

    def opened(body: Any) -> httpx2.Response:
        answer = provider.streamed(_events_of(provider.answer, body))
        provider.streams[-1].stays_open = True
        return answer

    provider.next = [opened]

    async def agent(run: Run) -> None:
        found.append(dumped(await ASYNC[name](client)))
        if run.recovery_count == 0:
            raise OSError("once more")

    run(agent, CheckpointStore())
    assert found[0] == found[1] and len(provider.bodies) == 1
    assert provider.streams[0].closed


# -- what fails


@pytest.mark.parametrize("streams", [False, True])
def test_the_client_retries_inside_one_call(streams: bool, provider: Provider) -> None:
    client, store = recorded_openai(provider.openai_client(max_retries=2)), CheckpointStore()
    provider.next = [
        httpx2.Response(429, headers={"retry-after-ms": "1"}, json={"error": {"message": "no"}}),
        httpx2.ConnectError("no route"),
    ]
    found: list[Any] = []

    def agent(run: SyncRun) -> None:
        answer = chat(client, stream=streams)
        found.append(dumped(list(answer)) if streams else dumped(answer))
        if run.recovery_count == 0:
            raise OSError("once more")

    run_sync(agent, store)
    assert len(provider.bodies) == 3 and len(recorded(store, CallIntended)) == 1
    assert found[0] == found[1]


@pytest.mark.parametrize("streams", [False, True])
def test_an_error_of_the_provider_is_the_sdks_own_and_is_served(
    streams: bool, provider: Provider
) -> None:
    client = recorded_anthropic(provider.anthropic_client(max_retries=0))
    store, found = CheckpointStore(), list[Any]()
    error = {"type": "error", "error": {"type": "invalid_request_error", "message": "too long"}}
    provider.next = [httpx2.Response(400, json=error)]

    def agent(run: SyncRun) -> None:
        with pytest.raises(anthropic.BadRequestError, match="too long") as raised:
            messages(client, stream=streams)
        exc = raised.value
        found.append([str(exc), exc.status_code, exc.body, exc.request_id])
        if run.recovery_count == 0:
            raise OSError("once more")

    run_sync(agent, store)
    assert found[0] == found[1] and found[0][1:] == [400, error, "req_1"]
    assert len(provider.bodies) == 1


def test_a_connection_that_fails_is_the_sdks_error(provider: Provider) -> None:
    client, found = recorded_openai(provider.openai_client(max_retries=0)), list[Any]()
    provider.next = [httpx2.ReadTimeout("slow"), httpx2.ConnectError("no route")]

    def agent(run: SyncRun) -> None:
        for kind in (openai.APITimeoutError, openai.APIConnectionError):
            with pytest.raises(kind) as raised:
                chat(client)
            found.append(str(raised.value))
        if run.recovery_count == 0:
            raise OSError("once more")

    run_sync(agent, CheckpointStore())
    assert found[:2] == found[2:] and len(provider.bodies) == 2


BROKEN = (openai.APIConnectionError, httpx.ReadError)  # the second by older versions


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_a_stream_that_breaks_breaks_where_it_is_read(kind: str, provider: Provider) -> None:
    """The chunks before it are not recorded, the error is."""
    store, found = CheckpointStore(), list[Any]()

    def read(chunks: list[Any], exc: Exception) -> None:
        found.append([str(exc), type(exc).__name__])
        seen.append(len(chunks))

    seen: list[int] = []
    events = Provider().answer  # of another provider: its events
    provider.next = [
        lambda body: provider.streamed(_events_of(events, body), breaks=True),
    ]
    plain_client = recorded_openai(provider.openai_client())
    async_client = recorded_openai(provider.async_openai_client())

    def agent(run: SyncRun) -> None:
        stream, chunks = chat(plain_client, stream=True), list[Any]()
        try:
            chunks.extend(stream)
        except BROKEN as exc:
            read(chunks, exc)
        if run.recovery_count == 0:
            raise OSError("once more")

    async def async_agent(run: Run) -> None:
        stream, chunks = await chat(async_client, stream=True), list[Any]()
        try:
            async for chunk in stream:
                chunks.append(chunk)
        except BROKEN as exc:
            read(chunks, exc)
        if run.recovery_count == 0:
            raise OSError("once more")

    run_sync(agent, store) if kind == "plain" else run(async_agent, store)
    assert found[0] == found[1] and len(provider.bodies) == 1
    assert seen[0] > 0 == seen[1]


def _events_of(answer: Any, body: Any) -> list[Any]:
    from tests.support.providers import completion_chunks

    return completion_chunks("he", "llo")


# -- what the provider keeps, and what must not be sent twice


def effects() -> dict[str, tuple[Any, dict[str, Any], str]]:
    return {
        "nothing": (responses, {}, "retry"),
        "previous": (responses, {"previous_response_id": "resp_0"}, "retry"),
        "own tools": (responses, {"tools": [{"type": "web_search"}]}, "retry"),
        "conversation": (responses, {"conversation": "conv_1"}, "park"),
        "background": (responses, {"background": True}, "park"),
        "server": (
            responses,
            {"tools": [{"type": "mcp", "server_label": "s", "server_url": "u"}]},
            "park",
        ),
        "container": (
            responses,
            {"tools": [{"type": "code_interpreter", "container": "cntr_1"}]},
            "park",
        ),
        "new container": (
            responses,
            {"tools": [{"type": "code_interpreter", "container": {"type": "auto"}}]},
            "retry",
        ),
        "messages": (messages, {}, "retry"),
        "messages in a container": (messages, {"container": "container_1"}, "park"),
        "messages with servers": (
            messages,
            {"extra_body": {"mcp_servers": [{"type": "url", "url": "u", "name": "n"}]}},
            "park",
        ),
    }


@pytest.mark.parametrize("name", effects())
def test_what_the_provider_keeps_parks_the_run_and_is_not_sent_again(
    name: str, provider: Provider
) -> None:
    asks, more, policy = effects()[name]
    plain: Any = provider.anthropic_client() if asks is messages else provider.openai_client()
    wrap: Any = recorded_anthropic if asks is messages else recorded_openai
    client, store = wrap(plain), disk_store()

    def dies(body: Any) -> Any:
        raise Died

    provider.next = [dies]

    def agent(run: SyncRun) -> Any:
        return asks(client, **more).id

    with pytest.raises(Died):
        run_sync(agent, store)
    (intent,) = recorded(store, CallIntended)
    assert intent.after_crash == policy
    store = after_death(store)
    if policy == "park":
        with pytest.raises(InDoubtError):
            run_sync(agent, store)
        assert len(provider.bodies) == 1
    else:
        run_sync(agent, store)
        assert len(provider.bodies) == 2
    assert provider.bodies[0] == provider.bodies[-1]


def test_the_user_decides_otherwise(provider: Provider) -> None:
    store = CheckpointStore()
    client = recorded_openai(provider.openai_client(), after_crash="retry")
    run_sync(lambda run: responses(client, conversation="c").id, store)
    assert [one.after_crash for one in recorded(store, CallIntended)] == ["retry"]


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("what", ["timeout", "no connection", "500"])
def test_an_effect_without_an_answer_is_in_doubt_and_sent_once(
    what: str, streams: bool, provider: Provider
) -> None:
    client, store = recorded_openai(provider.openai_client(max_retries=5)), CheckpointStore()
    provider.next = [
        {
            "timeout": httpx2.ReadTimeout("slow"),
            "no connection": httpx2.ReadError("gone"),
            "500": httpx2.Response(500, json={"error": {"message": "no"}}),
        }[what]
    ]

    def agent(run: SyncRun) -> Any:
        answer = responses(client, conversation="c", stream=streams)
        return len(list(answer)) if streams else answer.id

    with pytest.raises(InDoubtError):
        run_sync(agent, store)
    assert len(provider.bodies) == 1
    (call,) = store.run(RUN).status().in_doubt
    store.run(RUN).resolve(call.lsn, Resolution.outcome("yes"))
    with pytest.raises((TypeError, KeyError)):
        run_sync(agent, store)


def test_what_a_person_says_that_the_provider_answered_is_served(provider: Provider) -> None:
    client, store = recorded_openai(provider.openai_client()), CheckpointStore()
    provider.next = [httpx2.ReadTimeout("slow")]

    def agent(run: SyncRun) -> Any:
        found = responses(client, conversation="c")
        return [found.id, found.output_text]

    with pytest.raises(InDoubtError):
        run_sync(agent, store)
    (call,) = store.run(RUN).status().in_doubt
    store.run(RUN).resolve(call.lsn, Resolution.outcome(response("by hand", id="resp_9")))
    assert run_sync(agent, store)["result"] == ["resp_9", "by hand"]


def test_ids_that_the_provider_holds_are_those_of_the_record(provider: Provider) -> None:
    client, store = recorded_openai(provider.openai_client()), CheckpointStore()
    provider.next = [lambda body: httpx2.Response(200, json=response(id="resp_7"))]

    def agent(run: SyncRun) -> None:
        first = responses(client)
        if run.recovery_count == 0:
            raise OSError("once more")
        responses(client, previous_response_id=first.id)

    run_sync(agent, store)
    assert [body.get("previous_response_id") for body in provider.bodies] == [None, "resp_7"]


@pytest.mark.parametrize(
    ("ask", "path"),
    [
        (lambda client: client.files.delete("file_1"), "DELETE /files/file_1"),
        (lambda client: client.files.create(file=b"x", purpose="batch"), "POST /files"),
        (lambda client: client.responses.cancel("resp_1"), "POST /responses/resp_1/cancel"),
    ],
)
def test_what_is_not_recorded_is_refused_before_anything_is_sent(
    ask: Any, path: str, provider: Provider
) -> None:
    client = recorded_openai(provider.openai_client())
    with pytest.raises(TypeError, match=f"{path} is not recorded.*Nothing was sent.*@tool"):
        run_sync(lambda run: ask(client), CheckpointStore())
    assert provider.bodies == []


def test_what_only_reads_is_recorded(provider: Provider) -> None:
    client, store = recorded_openai(provider.openai_client()), CheckpointStore()
    run_sync(lambda run: client.responses.retrieve("resp_1", include=[]).id, store)
    (intent,) = recorded(store, CallIntended)
    assert (intent.tool, intent.after_crash) == ("openai GET /responses/resp_1", "retry")


# -- identity


def test_a_request_that_changed_stops_the_run(provider: Provider) -> None:
    client, store, text = recorded_openai(provider.openai_client()), disk_store(), "first"

    def agent(run: SyncRun) -> None:
        client.responses.create(model="m", input=text)
        raise Died

    with pytest.raises(Died):
        run_sync(agent, store)
    text = "another one, of other words"
    with pytest.raises(DivergenceError, match=r"identity\.input: 'first' -> 'another"):
        run_sync(agent, after_death(store))


def test_a_body_with_a_clock_is_known_by_what_its_user_says(provider: Provider) -> None:
    client = recorded_openai(provider.openai_client(), identity=lambda body: [body["input"]])
    store, now = CheckpointStore(), 0

    def agent(run: SyncRun) -> Any:
        nonlocal now
        now += 1
        client.responses.create(model="m", input="x", metadata={"at": str(now)})
        if run.recovery_count == 0:
            raise OSError("once more")

    run_sync(agent, store)
    (intent,) = recorded(store, CallIntended)
    assert intent.args[1]["metadata"] == {"at": "1"}
    assert len(provider.bodies) == 1


# -- where it is used


def test_outside_of_a_run_it_is_the_client_that_it_was(provider: Provider) -> None:
    plain = provider.openai_client()
    client = recorded_openai(plain)
    assert isinstance(client, openai.OpenAI)
    assert dumped(chat(client))[:2] == dumped(chat(plain))[:2]
    assert [one.id for one in client.models.list()] == ["m"]
    with client.chat.completions.create(model="m", messages=ASKED, stream=True) as stream:
        assert len(list(stream)) == 5
    with pytest.raises(TypeError, match="recorded already"):
        recorded_openai(client)
    with pytest.raises(TypeError, match="takes a client of openai"):
        recorded_openai(cast(Any, provider.anthropic_client()))
    client.close()
    assert plain.is_closed()


def test_what_is_derived_from_it_is_recorded(provider: Provider) -> None:
    client, store = recorded_anthropic(provider.anthropic_client()), CheckpointStore()
    run_sync(lambda run: messages(client.with_options(timeout=5)).id, store)
    assert len(recorded(store, CallIntended)) == 1


def test_in_a_tool_it_is_a_call_inside_the_tools(provider: Provider) -> None:
    client, store = recorded_openai(provider.openai_client()), CheckpointStore()

    @tool(after_crash="retry")
    def think(question: str) -> str:
        said = chat(client).choices[0].message.content
        words = [chunk.choices for chunk in chat(client, stream=True)]
        return f"{question} {said} {len(words)}"

    async def agent(run: Run) -> Any:
        return [await run.call(think, "why?"), chat(client).id]

    assert run(agent, store)["result"] == ["why? hi 5", "chatcmpl-1"]
    scopes = [one.scope for one in recorded(store, CallIntended)]
    assert scopes[0] == scopes[3] == "0"
    assert scopes[1] == scopes[2] and scopes[1].startswith("call ")


def test_a_client_of_the_other_kind_cannot_stream(provider: Provider) -> None:
    plain, for_async = (
        recorded_openai(provider.openai_client()),
        recorded_openai(provider.async_openai_client()),
    )

    async def agent(run: Run) -> None:
        chat(plain, stream=True)

    async def reads() -> None:
        await chat(for_async, stream=True)

    with pytest.raises(TypeError, match="use the async client"):
        run(agent, CheckpointStore())
    with pytest.raises(TypeError, match="use the plain client"):
        run_sync(lambda run: asyncio.run(reads()), CheckpointStore())
    assert provider.bodies == []


def test_an_async_client_in_a_loop_of_a_plain_agent(provider: Provider) -> None:
    client, store = recorded_anthropic(provider.async_anthropic_client()), CheckpointStore()

    def agent(run: SyncRun) -> Any:
        found = asyncio.run(messages(client)).id
        if run.recovery_count == 0:
            raise OSError("once more")
        return found

    assert run_sync(agent, store)["result"] == "msg_1"
    assert len(provider.bodies) == 1


def test_side_by_side_each_has_its_own_answer(provider: Provider) -> None:
    client, store = recorded_anthropic(provider.async_anthropic_client()), CheckpointStore()

    def echo(body: Any) -> Any:
        return httpx2.Response(200, json=message(body["messages"][0]["content"]))

    provider.next = [echo] * 5

    async def one(at: int, run: Run) -> str:
        await asyncio.sleep((at * 7 + run.recovery_count) % 5 * 0.01)
        asked: Any = [{"role": "user", "content": f"q{at}"}]
        said = await client.messages.create(model="c", max_tokens=9, messages=asked)
        return next(block.text for block in said.content if block.type == "text")

    async def agent(run: Run) -> Any:
        found = await asyncio.gather(*(one(at, run) for at in range(5)))
        if run.recovery_count == 0:
            raise OSError("once more")
        return found

    assert run(agent, store)["result"] == [f"q{at}" for at in range(5)]
    assert len(provider.bodies) == 5


def test_clients_that_send_by_the_older_http_library(provider: Provider) -> None:
    sent: list[Any] = []

    def answer(request: httpx.Request) -> httpx.Response:
        sent.append(request)
        return httpx.Response(200, json=completion(), headers={"x-request-id": "r"})

    http: Any = httpx.Client(transport=httpx.MockTransport(answer))
    client = recorded_openai(openai.OpenAI(api_key="k", http_client=http))

    def agent(run: SyncRun) -> Any:
        found = chat(client)
        if run.recovery_count == 0:
            raise OSError("once more")
        return [found.id, found._request_id]

    assert run_sync(agent, CheckpointStore())["result"] == ["chatcmpl-1", "r"]
    assert len(sent) == 1


def test_tools_of_a_tool_runner_are_recorded_calls(provider: Provider) -> None:
    client, store, done = recorded_anthropic(provider.anthropic_client()), CheckpointStore(), []
    used = {"type": "tool_use", "id": "toolu_1", "name": "pay", "input": {"cents": 5}}
    provider.next = [
        lambda body: httpx2.Response(200, json=message(used, stop_reason="tool_use")),
        lambda body: httpx2.Response(200, json=message("paid")),
    ]

    def agent(run: SyncRun) -> Any:
        @anthropic.beta_tool
        @tool
        def pay(cents: int) -> str:
            """Pay.

            Args:
                cents: How much.
            """
            done.append(cents)
            return f"paid {cents}"

        runner = client.beta.messages.tool_runner(
            model="c", max_tokens=10, tools=[pay], messages=ASKED
        )
        said = runner.until_done().content
        if run.recovery_count == 0:
            raise OSError("once more")
        return next(block.text for block in said if block.type == "text")

    assert run_sync(agent, store)["result"] == "paid"
    assert done == [5] and len(provider.bodies) == 2


def test_a_budget_counts_each_request(provider: Provider) -> None:
    client = recorded_openai(provider.openai_client())
    agent = RecoverableAgent(lambda run: [chat(client).id, run.usage().calls], CheckpointStore())
    assert agent.run_with_recovery_sync("task", "run")["result"] == ["chatcmpl-1", 1]
