"""Proxies and counts requests: each request of an agent is an effect, and a point to die at.

The proxy runs in the crash test's own process, so it survives the agent. It forwards a request when
it has all of it, in one piece, and passes the answer on as it comes. Requests that may be repeated
freely (GET, HEAD, OPTIONS) are forwarded and not counted.
"""

from __future__ import annotations

import itertools
import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from urllib.parse import urlsplit

import h11

from recovery.testing.processes.probe import text
from recovery.testing.processes.watch import Effect, Watch

HARMLESS = (b"GET", b"HEAD", b"OPTIONS")
BODY_SIZE_MAX = 64 * 1024 * 1024  # of a request; it is held in memory
RECEIVE_SIZE = 64 * 1024
ANSWER_S = 120.0  # how long a service may be silent
# Headers of one connection, not of the message (RFC 9110, 7.6.1), or set again here.
_HOP = frozenset(
    b"connection keep-alive proxy-connection te trailer transfer-encoding upgrade expect".split()
)


@dataclass(frozen=True, slots=True)
class Service:
    """The destination of requests."""

    host: str
    port: int
    tls: bool = False

    @classmethod
    def parse(cls, where: str) -> Service:
        """``HOST:PORT``, or the beginning of a URL. Raises ValueError."""
        url = urlsplit(where if "://" in where else f"http://{where}")
        if url.scheme not in ("http", "https") or not url.hostname or url.path not in ("", "/"):
            raise ValueError(f"{where!r} is not HOST:PORT, http://HOST[:PORT] or https://HOST")
        tls = url.scheme == "https"
        return cls(url.hostname, url.port or (443 if tls else 80), tls)

    @property
    def authority(self) -> str:
        """The Host header of its requests."""
        return self.host if self.port == (443 if self.tls else 80) else f"{self.host}:{self.port}"

    @contextmanager
    def connect(self) -> Iterator[socket.socket]:
        with socket.create_connection((self.host, self.port), timeout=ANSWER_S) as plain:
            if not self.tls:
                yield plain
                return
            context = ssl.create_default_context()
            with context.wrap_socket(plain, server_hostname=self.host) as secured:
                yield secured


class Proxy:
    """Listens on a loopback port (0: any free one) for as long as it is entered as a context."""

    def __init__(self, port: int, service: Service, watch: Callable[[], Watch]) -> None:
        self._service, self._watch = service, watch
        self._numbers = itertools.count(1)
        self._under_way = 0
        self._settled = threading.Condition()
        self._server = socket.create_server(("127.0.0.1", port), backlog=128)
        self.port: int = self._server.getsockname()[1]

    def __enter__(self) -> Proxy:
        threading.Thread(target=self._serve, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)  # close() alone does not wake the thread
        self._server.close()

    def settle(self, limit_s: float) -> bool:
        """Wait until the service has answered all forwarded requests."""
        with self._settled:
            return self._settled.wait_for(lambda: not self._under_way, limit_s)

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:
                return  # closed
            watch = self._watch()
            exchange = _Exchange(self, client, watch, watch.life)
            threading.Thread(target=exchange.run, daemon=True).start()

    @contextmanager
    def forwarding(self) -> Iterator[tuple[socket.socket, str]]:
        """A connection to the service, and a number for what is sent on it."""
        with self._settled:
            self._under_way += 1
            number = f"request {next(self._numbers)}"
        try:
            with self._service.connect() as upstream:
                yield upstream, number
        finally:
            with self._settled:
                self._under_way -= 1
                self._settled.notify_all()

    def retarget(self, request: h11.Request, body: bytes) -> h11.Request:
        """Forwards a request to the service, on a connection of its own, in one piece."""
        headers = [
            (name, value)
            for name, value in request.headers
            if name not in _HOP and name not in (b"host", b"content-length")
        ]
        headers += [(b"host", self._service.authority.encode()), (b"connection", b"close")]
        if body or request.method in (b"POST", b"PUT", b"PATCH"):
            headers.append((b"content-length", str(len(body)).encode()))
        return h11.Request(method=request.method, target=request.target, headers=headers)


class _Exchange:
    """One connection of an agent."""

    def __init__(self, proxy: Proxy, client: socket.socket, watch: Watch, life: str) -> None:
        self._proxy, self._client, self._watch, self._life = proxy, client, watch, life
        self._http = h11.Connection(h11.SERVER)

    def run(self) -> None:
        """Answer requests until either side closes, or the agent dies."""
        with self._client, suppress(OSError, h11.ProtocolError):
            while self._one():
                self._http.start_next_cycle()

    def _one(self) -> bool:
        """Handle one request; returns whether another may follow."""
        received = self._request()
        if received is None:
            return False
        request, body = received
        name = f"{request.method.decode()} {request.target.decode().partition('?')[0]}"
        counts = request.method not in HARMLESS
        if counts and not self._watch.may("request", name, self._life):
            return False
        try:
            with self._proxy.forwarding() as (upstream, number):
                if counts:
                    self._watch.began(self._life, number, _effect(name, request, body))
                return self._forward(
                    upstream,
                    self._proxy.retarget(request, body),
                    body,
                    (name, number) if counts else None,
                )
        except (OSError, h11.RemoteProtocolError) as exc:
            return self._refuse(502, f"the service does not answer: {exc}")

    def _request(self) -> tuple[h11.Request, bytes] | None:
        """The next complete request."""
        request, body = None, bytearray()
        while True:
            event = _next(self._http, self._client)
            if isinstance(event, h11.Request):
                request = event
            elif isinstance(event, h11.Data):
                body += event.data
                if len(body) > BODY_SIZE_MAX:
                    self._refuse(413, f"the crash test's proxy takes {BODY_SIZE_MAX} bytes")
                    return None
            elif isinstance(event, h11.EndOfMessage) and request is not None:
                return request, bytes(body)
            else:
                return None
            if self._http.they_are_waiting_for_100_continue:
                self._send(h11.InformationalResponse(status_code=100, headers=[]))

    def _forward(
        self,
        upstream: socket.socket,
        request: h11.Request,
        body: bytes,
        counted: tuple[str, str] | None,
    ) -> bool:
        http = h11.Connection(h11.CLIENT)
        for part in (request, h11.Data(data=body), h11.EndOfMessage()):
            upstream.sendall(http.send(part) or b"")
        while True:
            event = _next(http, upstream)
            if isinstance(event, h11.Response):
                if counted is not None and not self._answered(event.status_code, *counted):
                    return False
                headers = [pair for pair in event.headers if pair[0] not in _HOP]
                self._send(h11.Response(status_code=event.status_code, headers=headers))
            elif isinstance(event, h11.Data):
                self._send(h11.Data(data=bytes(event.data)))
            elif isinstance(event, h11.EndOfMessage):
                self._send(h11.EndOfMessage())
                return self._http.our_state is h11.DONE
            elif not isinstance(event, h11.InformationalResponse):
                raise h11.RemoteProtocolError("it closed the connection")

    def _answered(self, status: int, name: str, number: str) -> bool:
        """The service has acted, and the agent does not know it yet; returns whether it may."""
        if status < 400:
            self._watch.done(self._life, number)
        elif status < 500:  # the service says that it did nothing; after 5xx that is unknown
            self._watch.refused(self._life, number)
        return self._watch.may("answer", name, self._life)

    def _refuse(self, status: int, why: str) -> bool:
        if self._http.our_state is h11.SEND_RESPONSE:
            body = why.encode()
            headers = [("content-length", str(len(body))), ("connection", "close")]
            self._send(h11.Response(status_code=status, headers=headers))
            self._send(h11.Data(data=body))
            self._send(h11.EndOfMessage())
        return False

    def _send(self, event: h11.Event) -> None:
        data = self._http.send(event)
        if data:
            self._client.sendall(data)


def _next(http: h11.Connection, connection: socket.socket) -> object:
    """The next event of a connection."""
    while (event := http.next_event()) is h11.NEED_DATA:
        http.receive_data(connection.recv(RECEIVE_SIZE))
    return event


def _effect(name: str, request: h11.Request, body: bytes) -> Effect:
    key = next((value for field, value in request.headers if field == b"idempotency-key"), b"")
    try:
        content: object = json.loads(body)
    except ValueError:
        content = body.decode(errors="replace")
    return Effect(name, {"body": text(content)} if body else {}, key.decode(errors="replace"))
