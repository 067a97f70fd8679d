"""A TCP proxy in a thread, between clients and a server: it stops passing bytes, and heals.

It can also end a connection at a given request: before the server has it, or before its answer.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable
from contextlib import suppress

CHUNK = 64 * 1024
OUT, BACK = "out", "back"  # from the client, and to it


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


class Proxy:
    """Passes bytes between ``port`` on this machine and a server, until it is cut.

    While it is cut, connections stay open and are silent, as on a network that drops packets. What
    was held is passed on when it heals: also to a server whose client has given up.
    """

    def __init__(self, host: str, port: int) -> None:
        self._server = host, port
        self._writers: set[asyncio.StreamWriter] = set()
        self._left, self._is_after = 0, False
        self._act: Callable[[], object] = _nothing
        ready = threading.Event()
        self._thread = threading.Thread(target=asyncio.run, args=(self._main(ready),), daemon=True)
        self._thread.start()
        ready.wait()
        self.heal()

    def cut(self, *directions: str) -> None:
        """Pass nothing any more in these directions: OUT, BACK."""
        for one in directions:
            self._loop.call_soon_threadsafe(self._open[one].clear)

    def heal(self, reset: bool = False) -> None:
        """Pass everything again; ``reset``: end the connections that there are instead."""
        if reset:
            self._loop.call_soon_threadsafe(self._reset)
        for one in self._open.values():
            self._loop.call_soon_threadsafe(one.set)

    def fault_at(self, count: int, after: bool, act: Callable[[], object] | None = None) -> None:
        """End the connection at this request, counted from now on, and call ``act``: before the
        server has the request, or ``after`` it has answered, before the client has the answer.

        A request is what a client sends at once.
        """
        self._left, self._is_after, self._act = count, after, act or _nothing

    @property
    def is_due(self) -> bool:
        """Whether so many requests have not been made."""
        return self._left > 0

    def close(self) -> None:
        """End all connections."""
        self._loop.call_soon_threadsafe(self._is_over.set)
        self._thread.join()

    async def _main(self, ready: threading.Event) -> None:
        self._loop = asyncio.get_running_loop()
        self._open = {OUT: asyncio.Event(), BACK: asyncio.Event()}
        self._is_over = asyncio.Event()
        listener = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port: int = listener.sockets[0].getsockname()[1]
        ready.set()
        await self._is_over.wait()
        listener.close()
        self._reset()

    def _reset(self) -> None:
        for one in self._writers:
            one.transport.abort()

    async def _connected(self, reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        try:
            answers, server = await asyncio.open_connection(*self._server)
        except OSError:  # the server is down
            client.transport.abort()
            return
        faulty = asyncio.Event()
        with suppress(asyncio.CancelledError):  # the proxy is closed
            await asyncio.gather(
                self._pump(reader, server, OUT, faulty), self._pump(answers, client, BACK, faulty)
            )

    async def _pump(
        self,
        source: asyncio.StreamReader,
        sink: asyncio.StreamWriter,
        direction: str,
        faulty: asyncio.Event,
    ) -> None:
        self._writers.add(sink)
        with suppress(OSError):
            while data := await source.read(CHUNK):
                await self._open[direction].wait()
                if direction is OUT and self._counts():
                    faulty.set()
                if faulty.is_set() and self._is_after is (direction is BACK):
                    self._act()
                    break
                sink.write(data)
                await sink.drain()
        await self._open[direction].wait()
        self._writers.discard(sink)
        if faulty.is_set():
            sink.transport.abort()
        sink.close()

    def _counts(self) -> bool:
        """Whether this is the request at which there is a fault."""
        self._left -= 1
        return self._left == 0


def _nothing() -> None:
    pass
