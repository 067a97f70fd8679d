"""Decides which durability and locks a file system gives, by its kind and mount options. Pure.

This module is the only place for this knowledge: ``EventLog.open`` refuses or warns by it, and
``recovery doctor`` reports it.
"""

from __future__ import annotations

import re
from typing import Literal

from eventlog.light_dataclass import light_dataclass

# Locks and flushes of these do not keep the promise of durability="power".
NETWORK = frozenset({"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "fuse.sshfs"})
# Between machines, or a virtual machine and its host: as reliable as the server.
SHARED = frozenset(
    {
        "afs",
        "beegfs",
        "ceph",
        "drvfs",
        "glusterfs",
        "gpfs",
        "lustre",
        "ocfs2",
        "gfs2",
        "prl_fs",
        "vboxsf",
        "virtiofs",
        "vmhgfs",
    }
)
MEMORY = frozenset({"tmpfs", "ramfs", "devtmpfs", "hugetlbfs"})
# Without a journal.
SIMPLE = frozenset({"ext2", "vfat", "msdos", "exfat"})
# In wide use, with flushes that reach the device.
KNOWN = frozenset(
    {"apfs", "bcachefs", "btrfs", "ext3", "ext4", "f2fs", "hfs", "jfs", "overlay", "xfs", "zfs"}
)
# Mount options with which a flush does not reach the device, or the journal cannot be trusted.
UNSAFE_OPTIONS = {
    "nobarrier": "it does not have the device write its cache at a flush",
    "barrier=0": "it does not have the device write its cache at a flush",
    "barrier=none": "it does not have the device write its cache at a flush",
    "fsync_mode=nobarrier": "it does not have the device write its cache at a flush",
    "volatile": "it leaves out all flushes",
    "fsync=volatile": "it leaves out all flushes",  # how later kernels show it
    "nointegrity": "it keeps no journal",
}

Level = Literal["ok", "warning", "refused"]


@light_dataclass
class Mount:
    """A file system that is mounted: its kind, from where, at which path, with which options."""

    kind: str
    source: str = ""
    path: str = ""
    options: tuple[str, ...] = ()

    def __str__(self) -> str:
        of = f" ({self.source})" if self.source else ""
        return f"{self.kind}{of}" + f" at {self.path}" * bool(self.path)


@light_dataclass
class Verdict:
    """What a file system gives of a durability; ``todo``: the remedy when that is too little."""

    level: Level
    what: str
    todo: str = ""


def mount_in(mountinfo: str, mount_id: str, device: str) -> Mount | None:
    """The mount with this id, else the last mount of this device, in /proc/self/mountinfo."""
    found = None
    for line in mountinfo.splitlines():
        front, _, rear = line.partition(" - ")
        fields, rest = front.split(" "), rear.split(" ")
        if len(fields) < 6 or len(rest) < 3:
            continue
        if mount_id and fields[0] == mount_id:
            return _mount(fields, rest)
        if not mount_id and fields[2] == device:
            found = _mount(fields, rest)
    return found


def _mount(fields: list[str], rest: list[str]) -> Mount:
    options = dict.fromkeys([*fields[5].split(","), *rest[2].split(",")])
    return Mount(rest[0], _unescaped(rest[1]), _unescaped(fields[4]), tuple(options))


def _unescaped(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), text)


def judge(mount: Mount, durability: str) -> Verdict:
    """What this file system gives of this durability, as far as it is known."""
    kind = mount.kind
    if durability != "power":
        return _of_process(kind, durability)
    if kind in NETWORK:
        return Verdict(
            "refused",
            f"{kind} is a network file system, whose locks and flushes do not keep the promise of "
            'durability="power"',
            'Use a local disk, or durability="process" if losing the latest records at a power '
            "loss is acceptable.",
        )
    if kind in MEMORY:
        return Verdict(
            "warning",
            f"{kind} is memory: nothing survives a crash of the system or a power loss, whatever "
            "durability asks",
            "Put the log on a disk if it must survive a crash of the system.",
        )
    unsafe = next((option for option in mount.options if option in UNSAFE_OPTIONS), "")
    if unsafe:
        return Verdict(
            "warning",
            f"{kind} is mounted with {unsafe}: {UNSAFE_OPTIONS[unsafe]}, so a power loss may take "
            "what was committed, or damage it",
            f"Mount it without {unsafe}, or use another file system.",
        )
    if kind.startswith("fuse"):
        return Verdict(
            "warning",
            f"{kind}: flushes are as durable as it makes them",
            "Use a local disk, or be sure of it.",
        )
    if kind in SHARED:
        return Verdict(
            "warning",
            f"{kind} is shared with other machines: flushes and locks are as good as its server's",
            "Use a local disk, or be sure of it.",
        )
    if kind in SIMPLE:
        return Verdict(
            "warning",
            f"{kind} has no journal: a power loss may damage its directories, and with them logs",
            "Use ext4, xfs, btrfs or another file system with a journal.",
        )
    return Verdict("ok", _known(mount))


def _of_process(kind: str, durability: str) -> Verdict:
    what = (
        "survives the death of the process, not a crash of the system"
        if durability == "process"
        else "written 64 KiB at a time: a crash loses the last of it"
    )
    if kind in NETWORK or kind in SHARED:
        return Verdict(
            "warning",
            f"{what}; on {kind} a lock may not keep a second machine from writing to the same run",
            "Have each run resumed on one machine alone, or use a local disk.",
        )
    return Verdict("ok", what)


def _known(mount: Mount) -> str:
    """The sentence for a file system that gives the durability asked for."""
    what = f"what is committed{f' to {mount.kind}' * bool(mount.kind)} survives a power loss"
    notes = {
        "": f"{what}, as far as this system tells: the kind of file system is not known",
        "overlay": f"{what} as far as the file system below gives it; it goes with the container, "
        "if that is what it belongs to",
        "zfs": f"{what}, unless the dataset has sync=disabled",
    }
    if mount.kind in ("ext3", "ext4") and "data=writeback" in mount.options:
        return f"{what}; data=writeback is all right: checksums find wrong bytes"
    if mount.kind and mount.kind not in KNOWN:
        return f"{what}, unless that has its own ways: nothing is known of it here"
    return notes.get(mount.kind, what)
