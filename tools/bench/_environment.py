"""What the figures were measured on, without which they mean little."""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

JOURNALLED_SIZE = 6 << 30  # sparse: as much of it is taken as the benchmarks write


def environment(directory: Path) -> dict[str, str]:
    """Versions, machine and file system."""
    return {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "commit": _git("rev-parse", "--short", "HEAD") + _dirty(),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        **{name: _version(name) for name in ("msgpack", "xxhash", "isal")},
        "kernel": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpu": f"{os.cpu_count()} x {_cpu()}",
        "load": f"{os.getloadavg()[0]:.1f} when it began",
        "scheduling": "SCHED_FIFO where single steps are timed"
        if _may_real_time()
        else "default: waking up after a flush may take a tick of the kernel",
        "file system": mount_of(directory),
    }


def mount_of(directory: Path) -> str:
    """Type and options of the file system that holds ``directory``."""
    best = ("", "unknown")
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/mounts").read_text().splitlines():
            _, point, kind, options = line.split()[:4]
            if directory.resolve().is_relative_to(point) and len(point) >= len(best[0]):
                best = (point, f"{kind} ({options})")
    return best[1]


@contextmanager
def journalled(directory: Path) -> Iterator[Path | None]:
    """An ext4 file system with a journal, in a file; None where it cannot be mounted (it needs
    root). A growing file costs a journal commit there, which a file system without hides."""
    tools = all(shutil.which(name) for name in ("mkfs.ext4", "mount", "umount"))
    if not tools or os.geteuid() != 0:
        yield None
        return
    image, point = directory / "ext4.img", directory / "ext4"
    point.mkdir()
    with image.open("wb") as file:
        file.truncate(JOURNALLED_SIZE)
    commands = ("mkfs.ext4", "-q", "-F", image), ("mount", "-o", "loop", image, point)
    for command in commands:
        if subprocess.run(list(map(str, command)), check=False, capture_output=True).returncode:
            yield None
            return
    try:
        yield point
    finally:
        subprocess.run(["umount", "-l", point], check=False, capture_output=True)
        image.unlink()


def _cpu() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(": ")[2]
    return platform.processor() or "unknown"


def _may_real_time() -> bool:
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    except (OSError, AttributeError):
        return False
    return True


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _git(*args: str) -> str:
    done = subprocess.run(
        ["git", *args], capture_output=True, text=True, check=False, cwd=Path(__file__).parent
    )
    return done.stdout.strip() or "unknown"


def _dirty() -> str:
    sources = ("../../eventlog", "../../recovery")
    changed = _git("status", "--porcelain", "--untracked-files=no", *sources)
    return "" if changed == "unknown" else " and uncommitted changes"
