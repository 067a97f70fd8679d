"""What is said of file systems that are really mounted, with the options that matter."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.integration.kernels import ENVIRONMENT, KINDS, Mount, mounted, needed, no_mount, run

LOOP = 'mkfs.ext4 -q -F "$image" && mount -o loop,{options} "$image" "$where"'
BTRFS = 'mkfs.btrfs -q -f "$image" && mount -o loop{options} "$image" "$where"'
OVERLAY = (
    'mount -t tmpfs tmpfs "$where" && mkdir "$where/l" "$where/u" "$where/w" "$where/m" && '
    "mount -t overlay -o lowerdir=$where/l,upperdir=$where/u,workdir=$where/w{options} "
    'overlay "$where/m"'
)


@contextmanager
def mounted_by(how: str, size: int) -> Iterator[Mount]:
    needed(no_mount("tmpfs"))
    mount = Mount(how, size)
    try:
        needed(mount.failed and f"{how.split(maxsplit=1)[0]} does not work here: {mount.failed}")
        yield mount
    finally:
        mount.close()


def checks(mount: Mount, below: str = "") -> dict[str, dict[str, str]]:
    """What the doctor says of a store there."""
    store = f"{mount.inside}{below}"
    words = [sys.executable, "-m", "recovery.cli", "doctor", "--store", store, "--json"]
    assert ENVIRONMENT["PYTHONPATH"]
    done = run(mount.command(words))
    assert done.lines, done.err
    return {check["name"]: check for check in json.loads(done.lines[0])["checks"]}


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_the_kind_is_found_and_locks_and_names_work(kind: str) -> None:
    with mounted(kind) as mount:
        found = checks(mount)
        assert not [path for path in mount.path.iterdir() if path.name != "lost+found"]
    assert found["file system"]["text"].startswith(f"{kind.split(maxsplit=1)[0]} ")
    assert found["power"]["level"] == ("warning" if kind == "tmpfs" else "ok"), found["power"]
    for name in ("locks", "names"):
        assert found[name]["level"] == "ok", found[name]


@pytest.mark.parametrize(("option", "level"), [("nobarrier", "warning"), ("data=writeback", "ok")])
def test_mount_options_of_ext4_are_seen(option: str, level: str) -> None:
    with mounted_by(LOOP.format(options=option), 32 << 20) as mount:
        found = checks(mount)
    assert found["power"]["level"] == level and option in found["power"]["text"], found["power"]


def test_btrfs_is_known_though_its_devices_are_its_own() -> None:
    with mounted_by(BTRFS.format(options=""), 256 << 20) as mount:
        found = checks(mount)
    assert found["file system"]["text"].startswith("btrfs "), found["file system"]
    assert found["power"]["level"] == "ok"
    assert "inodes" not in found["space"]["text"]


@pytest.mark.parametrize("options", ["", ",volatile"])
def test_an_overlay_without_flushes_is_warned_about(options: str) -> None:
    with mounted_by(OVERLAY.format(options=options), 0) as mount:
        found = checks(mount, "/m")
    assert found["file system"]["text"].startswith("overlay "), found["file system"]
    assert found["power"]["level"] == ("warning" if options else "ok"), found["power"]


def test_a_full_disk_is_a_problem() -> None:
    with mounted("ext4") as mount:
        mount.fill()
        found = checks(mount)
    assert found["space"]["level"] == "problem"
    assert found["disk"]["level"] == "problem" and "No space left" in found["disk"]["text"]
