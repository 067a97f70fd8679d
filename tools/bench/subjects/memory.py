"""How much memory this process has, in bytes, as Linux counts it."""

from __future__ import annotations

import gc
from pathlib import Path

PEAK = "VmHWM"
_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def resident() -> int:
    """Now, without garbage."""
    gc.collect()
    return field(_STATUS.read_text(), "VmRSS")


def peak() -> int:
    """The most since ``forget_peak``. (ru_maxrss also has what this process was forked from.)"""
    return field(_STATUS.read_text(), PEAK)


def forget_peak() -> int:
    """Let the peak begin anew; what is resident now."""
    now = resident()
    _CLEAR.write_text("5")
    return now


def field(status: str, name: str) -> int:
    """What /proc/PID/status says, in bytes; KeyError when it does not."""
    for line in status.splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return int(value.split()[0]) << 10
    raise KeyError(name)
