"""What is known of file systems: from the mounts that a kernel lists to what is said of them."""

from __future__ import annotations

import pytest

from eventlog.files.file_systems import MEMORY, NETWORK, SHARED, SIMPLE, Mount, judge, mount_in

# Lines of real machines.
MOUNTINFO = r"""
22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,errors=remount-ro,data=ordered
61 27 254:0 /srv/data /data\040of\040ann rw,noatime shared:1 master:2 - ext4 /dev/vda rw,nobarrier
62 27 0:45 /@home /home rw,relatime shared:9 - btrfs /dev/nvme0n1p2 rw,ssd,subvol=/@home
63 27 0:61 / /run/box rw - overlay overlay rw,lowerdir=/l,upperdir=/u,workdir=/w,volatile
64 27 0:70 / /net rw,relatime shared:5 - nfs4 server:/export rw,vers=4.2,hard
a line that means nothing
65 27 0:71
66 27 0:72 / /cut - ext4 /dev/vdb rw
67 27 0:73 / /cut rw - ext4 /dev/vdb
"""


@pytest.mark.parametrize(
    ("mount_id", "device", "kind", "path", "option"),
    [
        ("27", "", "ext4", "/", "data=ordered"),
        ("61", "0:0", "ext4", "/data of ann", "nobarrier"),
        ("62", "0:99", "btrfs", "/home", "subvol=/@home"),
        ("63", "", "overlay", "/run/box", "volatile"),
        ("", "0:70", "nfs4", "/net", "hard"),
        ("", "254:0", "ext4", "/data of ann", "noatime"),
    ],
)
def test_a_mount_is_found(mount_id: str, device: str, kind: str, path: str, option: str) -> None:
    found = mount_in(MOUNTINFO, mount_id, device)
    assert found is not None
    assert (found.kind, found.path) == (kind, path) and option in found.options


@pytest.mark.parametrize(
    ("mount_id", "device"), [("65", ""), ("66", ""), ("67", ""), ("99", "254:0"), ("", "1:1")]
)
def test_a_mount_that_is_not_listed_is_not_known(mount_id: str, device: str) -> None:
    assert mount_in(MOUNTINFO, mount_id, device) is None


@pytest.mark.parametrize("kind", sorted(NETWORK))
def test_network_file_systems_do_not_give_power(kind: str) -> None:
    assert judge(Mount(kind), "power").level == "refused"
    assert "second machine" in judge(Mount(kind), "process").what
    assert judge(Mount(kind), "none").level == "warning"


@pytest.mark.parametrize("kind", [*sorted(SHARED | MEMORY | SIMPLE), "fuse.rclone", "fuseblk"])
def test_what_may_not_give_power_is_warned_about(kind: str) -> None:
    found = judge(Mount(kind), "power")
    assert found.level == "warning" and found.todo and kind in found.what


@pytest.mark.parametrize(
    "option",
    [
        "nobarrier",
        "barrier=0",
        "barrier=none",
        "fsync_mode=nobarrier",
        "volatile",
        "fsync=volatile",
        "nointegrity",
    ],
)
def test_options_that_undo_flushes_are_named(option: str) -> None:
    found = judge(Mount("ext4", options=("rw", option)), "power")
    assert found.level == "warning" and option in found.what and option in found.todo
    assert judge(Mount("ext4", options=("rw", option)), "process").level == "ok"


@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs", "zfs", "f2fs", "overlay", "apfs", ""])
def test_others_give_what_is_asked(kind: str) -> None:
    for durability, said in (
        ("power", "survives a power loss"),
        ("process", "not a crash of the system"),
        ("none", "loses the last"),
    ):
        found = judge(Mount(kind), durability)
        assert found.level == "ok" and said in found.what and not found.todo


@pytest.mark.parametrize(
    ("mount", "said"),
    [
        (Mount("ext4", options=("data=writeback",)), "checksums find wrong bytes"),
        (Mount("zfs"), "sync=disabled"),
        (Mount("overlay"), "container"),
        (Mount(""), "not known"),
    ],
)
def test_what_else_there_is_to_say_is_said(mount: Mount, said: str) -> None:
    assert said in judge(mount, "power").what


def test_a_mount_says_what_it_is() -> None:
    assert str(Mount("ext4", "/dev/vda", "/")) == "ext4 (/dev/vda) at /"
    assert str(Mount("memory")) == "memory"
