"""Segments of a log on a server, of which only headers are here, as several threads read them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from eventlog.format.names import segment_name
from eventlog.remote.directory import RemoteDirectory
from eventlog.remote.log_server import Head, Loaded, Owner, Piece

DATA = bytes(64) + b"records"
NAME = segment_name(1)


class Answers:
    address = "postgresql://here"
    meanwhile: Callable[[], None] = staticmethod(lambda: None)

    def segment(self, key: int, number: int) -> list[Piece]:
        self.meanwhile()
        return [Piece(number, 0, DATA)]


def opened() -> tuple[RemoteDirectory, Answers]:
    """A directory with the header of segment 1, and with segment 2."""
    server: Any = Answers()
    nobody = Owner(0, "", "", "")
    head = Head(7, "run", bytes(16), 1, nobody, 0, False, False, (), 9, 1, 0, 1, 2, 64, 200, 0)
    pieces = [Piece(1, 0, DATA[:64]), Piece(2, 0, bytes(64))]
    return RemoteDirectory(server, Loaded(head, pieces, frozenset({1}))), server


def test_a_segment_that_another_thread_loads_while_it_is_opened_is_whole() -> None:
    directory, _ = opened()

    plain = directory._segments

    class Segments(dict[int, bytearray]):
        def get(self, number: int, default: Any = None) -> Any:
            found = super().get(number, default)
            directory._segments = plain
            if directory._lock.acquire(blocking=False):  # so another thread could do this
                directory._lock.release()
                directory.whole(number)
            return found

    directory._segments = Segments(plain)
    file = directory.open(NAME)
    assert file.size() == len(DATA) and file.pread(7, 64) == b"records"


def test_a_segment_that_was_removed_while_it_was_read_is_missing() -> None:
    directory, _ = opened()
    file = directory.open(NAME)
    directory.drop_before(2)
    with pytest.raises(FileNotFoundError):
        file.pread(7, 64)


def test_a_segment_that_is_removed_while_it_is_loaded_does_not_come_back() -> None:
    directory, server = opened()
    server.meanwhile = lambda: directory.drop_before(2)
    with pytest.raises(FileNotFoundError):
        directory.open(NAME).size()
    assert NAME not in directory.names() and segment_name(2) in directory.names()
