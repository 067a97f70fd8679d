"""The least that can be done: bytes to a file."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import msgpack


def record(size: int) -> dict[str, Any]:
    """What an agent logs, of about so many bytes as msgpack; the same for all subjects."""
    fields = {
        "call": 1234567,
        "tool": "search",
        "call_id": "call_4f1c8d2e9a",
        "attempt": 1,
        "took_s": 0.25,
        "ok": True,
        "usage": [1200, 340],
    }
    rest = max(0, size - len(msgpack.packb(fields)) - 8)
    return {**fields, "value": text(rest, size)}


def reply(number: int) -> dict[str, Any]:
    """What a model says that wants a tool called: about 1.4 KB; another one for each number."""
    call = {"id": f"call_{number:08d}", "name": "search", "args": {"query": text(60, -number)}}
    return {"role": "assistant", "content": text(1250, number), "tool_calls": [call]}


def text(size: int, seed: int) -> str:
    """Characters, the same for the same seed."""
    return random.Random(seed).randbytes(size // 2 + 1).hex()[:size]


class _File:
    def __init__(self, directory: Path, case: dict[str, Any]) -> None:
        self._fd = os.open(directory / "file", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._record = record(case["size"])
        self._packed = msgpack.packb(self._record)

    def close(self) -> None:
        os.close(self._fd)


class Durable(_File):
    """write + fdatasync, the file growing."""

    def step(self, number: int) -> None:
        os.write(self._fd, self._packed)
        os.fdatasync(self._fd)


class Packed(_File):
    """msgpack.packb + write; no checksum, no frame, no flush."""

    def step(self, number: int) -> None:
        os.write(self._fd, msgpack.packb([number, "record", self._record]))
