"""Records the requests of a provider's own client: what OpenAI's and Anthropic's have in common.

Both clients send all their requests through one method, ``request``, around their retries, and by
an HTTP client that their user may give. A recorded client is a copy of the user's client:

    request      makes the recorded call, whose arguments are the body of the HTTP request
    HTTP client  takes the answer for the record; or gives the recorded answer, and sends nothing

So what is recorded is what was sent and what came back, as JSON, with the fields that were set and
no others. The SDK itself makes its types of the recorded answer, the first time as on replay.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from copy import copy
from dataclasses import dataclass
from datetime import date
from functools import partial
from typing import Any, Literal, TypeVar, cast

from recovery import SyncStream, current_run, tool
from recovery.errors import NoAnswerError
from recovery.integrations.event_stream import EVENT_STREAM, EventParser, as_written, is_last
from recovery.integrations.framework_calls import dumped

C = TypeVar("C")
Json = dict[str, Any]

HTTP_LIBRARIES = ("httpx2", "httpx")
# How a body is recorded that is no JSON, and what is recorded of the headers.
CONTENT, TYPE, REQUEST_ID = "_content", "_content_type", "_request_id"
EVENTS = "events"
_LEFT_OUT = ("Omit", "NotGiven")  # the SDKs' types of arguments that are not given
JSON = "application/json"


@dataclass(frozen=True)
class Provider:
    """What is known of a provider's requests.

    ``calls``: the names of recorded calls, by the path of a POST. ``is_effect``: whether a request
    must not be sent twice. ``no_answer``: the SDK's errors that leave open whether the
    provider got the request. ``usage``: of the events of a stream. ``id_header``: of its answers.
    """

    name: str
    calls: Mapping[str, str]
    is_effect: Callable[[Json], bool]
    no_answer: tuple[type[Exception], ...]
    usage: Callable[[list[Json]], Any]
    id_header: str


@dataclass(frozen=True)
class Settings:
    """The provider, and the options of one recorded client."""

    provider: Provider
    after_crash: Literal["retry", "park"] | None
    identity: Callable[[Json], Any] | None


# -- the client


def recorded(client: C, settings: Settings) -> C:
    """A copy of the client, whose requests in a run are recorded."""
    held: Any = client
    kind = type(held)
    if hasattr(kind, "recovery"):
        raise TypeError(f"{kind.__name__} is recorded already")
    http: Any = held._client
    library = _library_of(http)
    is_async = isinstance(http, library.AsyncClient)
    base, requests = (
        (library.AsyncBaseTransport, _AsyncRequests)
        if is_async
        else (library.BaseTransport, _SyncRequests)
    )
    wire = type("Wire", (_AsyncWire if is_async else _SyncWire, base), {})(http, library)
    made = library.AsyncClient if is_async else library.Client
    copied = held.copy(
        http_client=made(
            transport=wire,
            timeout=http.timeout,
            follow_redirects=http.follow_redirects,
            trust_env=False,
        )
    )
    asks: Any = requests(settings, kind)

    def request(self: Any, *args: Any, **kwargs: Any) -> Any:
        return asks.request(self, *args, **kwargs)

    # A subclass of the client's own class, so that what the SDK derives from it is recorded too.
    given = {"request": request, "recovery": settings}
    copied.__class__ = type(f"Recorded{kind.__name__}", (kind,), given)
    return cast(C, copied)


def _library_of(http: Any) -> Any:
    for kind in type(http).__mro__:
        name = kind.__module__.partition(".")[0]
        if name in HTTP_LIBRARIES:
            return sys.modules[name]
    raise TypeError(f"the client sends by {type(http).__name__}, which is no client of httpx")


class _Request:
    """One request in a run: the recorded call that it is."""

    def __init__(self, settings: Settings, options: Any) -> None:
        provider, self.options = settings.provider, _read_once(options)
        self.name, self.provider = name_of(provider, options), provider
        self._body, self._identity = _request_of(self.options), settings.identity
        is_effect = options.method.lower() != "get" and provider.is_effect(self._body)
        self._policy = settings.after_crash or ("park" if is_effect else "retry")
        if self._policy == "park":  # a retry of the client would send it twice
            self.options.max_retries = 0

    def call(self, function: Callable[..., Any], **more: Any) -> Any:
        """Make the call: ``function`` sends the request."""
        made = tool(
            name=self.name,
            after_crash=self._policy,
            identity=lambda **body: body if self._identity is None else self._identity(body),
            **more,
        )(function)
        return made(**self._body)

    def stream(self, function: Callable[..., Any]) -> Any:
        """The same of one whose answer comes in events, which ``function`` generates."""
        return self.call(function, combine=partial(_combined, self.provider), split=_split)

    @contextmanager
    def doubted(self) -> Iterator[None]:
        """What sends it, which may have no answer."""
        try:
            yield
        except Exception as exc:
            no_answer = isinstance(exc, self.provider.no_answer) or _is_of_http(exc)
            if self._policy == "park" and no_answer:
                raise NoAnswerError(f"{self.name}: {type(exc).__name__}: {exc}") from exc
            raise

    def recorded(self, found: Any) -> Json:
        """The recorded answer; a person who resolved the call may have given something else."""
        if not isinstance(found, dict):
            raise TypeError(
                f"the outcome of {self.name} is {found!r:.80}, and no JSON object as the provider "
                "answers"
            )
        return found


class _SyncRequests:
    """How a plain client makes its requests. ``kind``: its class."""

    def __init__(self, settings: Settings, kind: Any) -> None:
        self._settings, self._kind = settings, kind

    def request(self, client: Any, cast_to: Any, options: Any, *args: Any, **kwargs: Any) -> Any:
        if current_run() is None:
            return self._kind.request(client, cast_to, options, *args, **kwargs)
        made = _Request(self._settings, options)
        send = partial(self._kind.request, client, cast_to, made.options, *args, **kwargs)
        if kwargs.get("stream"):
            return self._streamed(made, send)

        def ask(**body: Any) -> Json:
            with made.doubted(), _exchange(_Exchange()) as exchange:
                send()
            return recorded_answer(exchange.taken, made.provider)

        with _exchange(_Exchange(made.recorded(made.call(ask)))):
            return send()

    def _streamed(self, made: _Request, send: Callable[[], Any]) -> Any:
        def ask(**body: Any) -> Iterator[Any]:
            with made.doubted():
                with _exchange(_Exchange(streams=True)) as exchange:
                    send()
                answer = exchange.taken
                try:
                    yield _head(answer, made.provider)
                    events = EventParser(answer)
                    for data in answer.iter_bytes():
                        yield from events.feed(data)
                    yield from events.end()
                finally:
                    answer.close()

        stream = made.stream(ask)
        if not isinstance(stream, SyncStream):
            raise TypeError(
                "a plain client cannot stream in the event loop of an async agent: use the async "
                "client there, or a plain tool"
            )
        try:
            first, failed = next(stream), None
        except Exception as exc:
            first, failed = {}, _of_the_body(exc)
        with _exchange(_Exchange(first, stream, failed)):
            return send()


class _AsyncRequests:
    """How an async client makes its requests. ``kind``: its class."""

    def __init__(self, settings: Settings, kind: Any) -> None:
        self._settings, self._kind = settings, kind

    async def request(
        self, client: Any, cast_to: Any, options: Any, *args: Any, **kwargs: Any
    ) -> Any:
        if current_run() is None:
            return await self._kind.request(client, cast_to, options, *args, **kwargs)
        made = _Request(self._settings, options)
        send = partial(self._kind.request, client, cast_to, made.options, *args, **kwargs)
        if kwargs.get("stream"):
            return await self._streamed(made, send)

        async def ask(**body: Any) -> Json:
            with made.doubted(), _exchange(_Exchange()) as exchange:
                await send()
            return recorded_answer(exchange.taken, made.provider)

        with _exchange(_Exchange(made.recorded(await made.call(ask)))):
            return await send()

    async def _streamed(self, made: _Request, send: Callable[[], Any]) -> Any:
        async def ask(**body: Any) -> AsyncIterator[Any]:
            with made.doubted():
                with _exchange(_Exchange(streams=True)) as exchange:
                    await send()
                answer = exchange.taken
                try:
                    yield _head(answer, made.provider)
                    events, pieces = EventParser(answer), answer.aiter_bytes()
                    async for data in pieces:
                        for event in events.feed(data):
                            if is_last(event):
                                await _read_out(pieces)
                            yield event
                    for event in events.end():
                        yield event
                finally:
                    await answer.aclose()

        stream = made.stream(ask)
        if isinstance(stream, SyncStream):
            raise TypeError(
                "an async client cannot stream in a plain agent: use the plain client there"
            )
        try:
            first, failed = await anext(stream), None
        except Exception as exc:
            first, failed = {}, _of_the_body(exc)
        with _exchange(_Exchange(first, stream, failed)):
            return await send()


async def _read_out(pieces: AsyncIterator[bytes]) -> None:
    """Read the end of a complete answer, so that the connection can be used again. Not for longer
    than OpenAI's SDK: some providers leave the answer open."""
    with suppress(Exception):
        async with asyncio.timeout(0.1):
            async for _ in pieces:
                pass


def _of_the_body(exc: Exception) -> Exception:
    """What a stream failed with after it had begun: on replay its consumer gets it there as well,
    and not from the request, which raises errors of the SDK."""
    if not _is_of_http(exc):
        raise exc
    return exc


def _is_of_http(exc: Exception) -> bool:
    return type(exc).__module__.partition(".")[0] in HTTP_LIBRARIES


def name_of(provider: Provider, options: Any) -> str:
    """The name of the call that a request is; TypeError for one that is not recorded."""
    method, path = options.method.upper(), str(options.url).partition("?")[0]
    if method == "GET":
        return f"{provider.name} GET {path}"
    if method == "POST" and path in provider.calls and not options.files:
        return provider.calls[path]
    raise TypeError(
        f"{method} {path} is not recorded: a recorded {provider.name} client makes, in a run, "
        f"requests of {', '.join(sorted({*provider.calls.values()}))} and what only reads. Nothing "
        "was sent. Make this request in a @tool of your own, with a client that is not recorded, "
        "so that you say what happens to it after a crash."
    )


def _read_once(options: Any) -> Any:
    """A request whose body is plain: the SDK sends it more than once, and an iterable that it was
    given may be read only once."""
    options = copy(options)
    given = options.json_data if isinstance(options.json_data, Mapping) else {}
    if given or options.extra_json:
        options.json_data = _as_sent({**given, **(options.extra_json or {})})
        options.extra_json = None
    return options


def _request_of(options: Any) -> Json:
    """The body of a request, and its query."""
    query = {name: value for name, value in dict(options.params or {}).items() if name != "beta"}
    return {**(options.json_data or {}), **({"_query": _as_sent(query)} if query else {})}


def _as_sent(value: Any) -> Any:
    """A value as the SDKs put it into a body: without what was left out."""
    if value is None or isinstance(value, str | int | float):
        return value
    if hasattr(value, "model_dump"):
        return dumped(value)
    if isinstance(value, Mapping):
        return {
            name: _as_sent(part)
            for name, part in value.items()
            if type(part).__name__ not in _LEFT_OUT
        }
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, Iterable) and not isinstance(value, bytes):
        return [_as_sent(part) for part in value]
    raise TypeError(f"a request with a {type(value).__name__} cannot be recorded: {value!r:.80}")


# -- what is recorded


def recorded_answer(answer: Any, provider: Provider) -> Json:
    """An HTTP answer: the JSON in it, and the id of the request."""
    kind = answer.headers.get("content-type", JSON)
    body = answer.json() if "json" in kind else None
    if not isinstance(body, dict):
        body = {CONTENT: answer.content, TYPE: kind}
    return {**body, **_request_id(answer, provider)}


def _request_id(answer: Any, provider: Provider) -> Json:
    found = answer.headers.get(provider.id_header)
    return {} if found is None else {REQUEST_ID: found}


def _head(answer: Any, provider: Provider) -> Json:
    """What precedes the events of a stream."""
    return {TYPE: answer.headers.get("content-type", ""), **_request_id(answer, provider)}


def _combined(provider: Provider, chunks: list[Any]) -> Json:
    head, *events = chunks or [{}]
    data = [event[1] for event in events if type(event) is list and type(event[1]) is dict]
    made: Json = {**head, EVENTS: events}
    if (model := next((one for one in map(_model_of, data) if one), "")) != "":
        made["model"] = model
    if (used := provider.usage(data)) is not None:
        made["usage"] = used
    return made


def _model_of(event: Json) -> str:
    for held in (event, event.get("message"), event.get("response")):
        if isinstance(held, dict) and isinstance(held.get("model"), str):
            return cast(str, held["model"])
    return ""


def _split(value: Any) -> list[Any]:
    if not (isinstance(value, dict) and isinstance(value.get(EVENTS), list)):
        raise TypeError(f"the outcome of a request is {value!r:.80}, and not a stream's events")
    return [{name: value[name] for name in (TYPE, REQUEST_ID) if name in value}, *value[EVENTS]]


# -- the HTTP client of a recorded client


class _Exchange:
    """One request of the SDK: its recorded ``answer``; without one, what is ``taken`` for the
    record. ``stream``: of chunks, which follow the answer; it may have ``failed``."""

    def __init__(
        self,
        answer: Json | None = None,
        stream: Any = None,
        failed: Exception | None = None,
        streams: bool = False,
    ) -> None:
        self.answer, self.stream, self.failed = answer, stream, failed
        self.streams = streams or stream is not None
        self.taken: Any = None

    def response(self, library: Any, request: Any) -> Any:
        """The recorded answer, as it came."""
        body = dict(self.answer or {})
        found = body.pop(REQUEST_ID, None)
        kind = body.pop(TYPE, None) or (EVENT_STREAM if self.streams else JSON)
        headers = {"content-type": kind}
        if found is not None:
            headers |= dict.fromkeys(("request-id", "x-request-id"), found)
        if self.stream is not None:
            base = (
                (_SyncBody, library.SyncByteStream)
                if isinstance(self.stream, SyncStream)
                else (_AsyncBody, library.AsyncByteStream)
            )
            made = type("Body", base, {})(self.stream, self.failed)
            return library.Response(200, headers=headers, stream=made, request=request)
        content = body[CONTENT] if CONTENT in body else json.dumps(body, ensure_ascii=False)
        return library.Response(200, headers=headers, content=content, request=request)


_present: ContextVar[_Exchange | None] = ContextVar("recovery_exchange", default=None)


@contextmanager
def _exchange(made: _Exchange) -> Iterator[_Exchange]:
    token = _present.set(made)
    try:
        yield made
    finally:
        _present.reset(token)


_OF_THE_WIRE = {"content-encoding", "content-length", "transfer-encoding"}


def _without_body(library: Any, answer: Any, request: Any, content: bytes) -> Any:
    """The answer for the SDK, while its body is taken for the record."""
    headers = [one for one in answer.headers.multi_items() if one[0].lower() not in _OF_THE_WIRE]
    return library.Response(answer.status_code, headers=headers, content=content, request=request)


class _Wire:
    """Sends what the SDK sends by the user's HTTP client."""

    def __init__(self, http: Any, library: Any) -> None:
        self._http, self._library = http, library


class _SyncWire(_Wire):
    def handle_request(self, request: Any) -> Any:
        exchange, send = _present.get(), self._http.send
        if exchange is not None and exchange.answer is not None:
            return exchange.response(self._library, request)
        streams = exchange is None or exchange.streams
        answer = send(request, stream=streams, follow_redirects=False)
        if exchange is None or not answer.is_success:
            return answer
        exchange.taken = answer
        return _without_body(self._library, answer, request, b"" if streams else answer.content)

    def close(self) -> None:
        self._http.close()


class _AsyncWire(_Wire):
    async def handle_async_request(self, request: Any) -> Any:
        exchange, send = _present.get(), self._http.send
        if exchange is not None and exchange.answer is not None:
            return exchange.response(self._library, request)
        streams = exchange is None or exchange.streams
        answer = await send(request, stream=streams, follow_redirects=False)
        if exchange is None or not answer.is_success:
            return answer
        exchange.taken = answer
        return _without_body(self._library, answer, request, b"" if streams else answer.content)

    async def aclose(self) -> None:
        await self._http.aclose()


class _Body:
    """The bytes of a stream, from its recorded call."""

    def __init__(self, stream: Any, failed: Exception | None) -> None:
        self._stream, self._failed = stream, failed


class _SyncBody(_Body):
    def __iter__(self) -> Iterator[bytes]:
        if self._failed is not None:
            raise self._failed
        for event in self._stream:
            yield as_written(event)

    def close(self) -> None:
        self._stream.close()


class _AsyncBody(_Body):
    async def __aiter__(self) -> AsyncIterator[bytes]:
        if self._failed is not None:
            raise self._failed
        async for event in self._stream:
            if is_last(event):
                # Invariant: the answer is recorded before the SDK has its last event. Behind that
                # the SDK reads on for a moment and cancels it, which would cancel the call.
                await self._stream.aclose()
            yield as_written(event)

    async def aclose(self) -> None:
        await self._stream.aclose()
