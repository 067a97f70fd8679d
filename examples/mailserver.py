"""A mail server on this machine, for the demo: keeps what it accepts, and accepts duplicates.

A mail is on disk before the server says that it is accepted, as with any honest server. It never
looks whether it has a mail already: were one sent twice, there would be two. ``VRFY <message-id>``
asks whether a mail with this Message-ID has arrived. (Not called mailbox.py: that is a module of
Python itself.)

    python mailserver.py DIRECTORY    prints its port, and ends when its standard input does
"""

from __future__ import annotations

import asyncio
import email
import email.policy
import itertools
import os
import random
import sys
import time
from email.message import EmailMessage
from pathlib import Path

from aiosmtpd.smtp import SMTP, Envelope, Session

THINK_S = (0.02, 0.08)  # a server takes a moment, before it accepts a mail and before it says so


def mails(directory: Path) -> list[tuple[str, EmailMessage]]:
    """File name and content of each mail that has arrived, in order."""
    paths = sorted((directory / "new").glob("*"))
    parse = email.message_from_bytes
    return [(path.name, parse(path.read_bytes(), policy=email.policy.default)) for path in paths]


class Mailbox:
    """Keeps mails as a maildir does: written in tmp, and whole when they are in new."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._numbers = itertools.count(1)
        self._arriving: set[Session] = set()
        for name in ("tmp", "new", "cur"):
            (directory / name).mkdir(parents=True, exist_ok=True)

    async def handle_RCPT(  # noqa: N802 - aiosmtpd's name, like those below
        self, server: SMTP, session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        await asyncio.sleep(random.uniform(*THINK_S))
        self._arriving.add(session)
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(  # noqa: N802
        self, server: SMTP, session: Session, envelope: Envelope
    ) -> str:
        assert isinstance(envelope.content, bytes)
        self._keep(envelope.content)
        self._arriving.discard(session)
        await asyncio.sleep(random.uniform(*THINK_S))
        return "250 OK"

    async def handle_VRFY(  # noqa: N802
        self, server: SMTP, session: Session, envelope: Envelope, address: str
    ) -> str:
        # What a client sent before it died may still be on its way through this server, so "no"
        # is an answer only when nothing is.
        while self._arriving:  # noqa: ASYNC110 - rare, and short
            await asyncio.sleep(0.005)
        ids = {mail["Message-ID"] for _, mail in mails(self._directory)}
        return "250 it is here" if f"<{address}>" in ids else "550 it is not here"

    def gone(self, session: Session) -> None:
        """The client has hung up."""
        self._arriving.discard(session)

    def _keep(self, content: bytes) -> None:
        name = f"{time.time_ns()}.{next(self._numbers)}"
        with (self._directory / "tmp" / name).open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        (self._directory / "tmp" / name).rename(self._directory / "new" / name)
        directory = os.open(self._directory / "new", os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


class _Session(SMTP):
    def connection_lost(self, error: Exception | None) -> None:
        assert isinstance(self.event_handler, Mailbox)
        if self.session is not None:
            self.event_handler.gone(self.session)
        super().connection_lost(error)


async def serve(directory: Path) -> None:
    """Serve until standard input ends, as it does when whoever started this process is gone."""
    mailbox = Mailbox(directory)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: _Session(mailbox, hostname="localhost", loop=loop), "127.0.0.1", 0
    )
    print(server.sockets[0].getsockname()[1], flush=True)
    async with server:
        await asyncio.to_thread(sys.stdin.buffer.read)


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1])))
