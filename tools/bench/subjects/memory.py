"""How much memory this process has, in bytes, as Linux counts it."""

from __future__ import annotations

import gc
from pathlib import Path

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def resident() -> int:
    """Now, without garbage."""
    gc.collect()
    return _field("VmRSS")


def peak() -> int:
    """The most since ``forget_peak``. (ru_maxrss also has what this process was forked from.)"""
    return _field("VmHWM")


def forget_peak() -> int:
    """Let the peak begin anew; what is resident now."""
    now = resident()
    _CLEAR.write_text("5")
    return now


def _field(name: str) -> int:
    for line in _STATUS.read_text().splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return int(value.split()[0]) << 10
    raise KeyError(name)
