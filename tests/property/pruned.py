"""How runs are pruned by random settings, and what is kept of them all the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import strategies as st

import recovery._pruning
from eventlog import EventLog
from recovery._pruning import Retention
from recovery._snapshots import checkpoints_in, prologue_in, restore
from tests.property.agents import RUN, World, records


@dataclass(frozen=True)
class Setting:
    """How a run is pruned. ``gain`` 0: a generation begins at each checkpoint that fills a segment,
    whether that pays or not. ``late``: how many checkpoints later the log is cut."""

    retention: tuple[tuple[str, Any], ...]
    segment_size: int
    gain: int
    late: int

    @property
    def kept(self) -> Retention:
        given = dict(self.retention)
        return Retention.of(given["retention"], given.get("keep"))


@st.composite
def pruning(draw: Any) -> Setting:
    kept: dict[str, Any] = draw(
        st.sampled_from([{"retention": "latest_only"}, {"retention": "prune_old"}])
        | st.integers(1, 4).map(lambda keep: {"retention": "prune_old", "keep": keep})
    )
    size = draw(st.sampled_from([100, 100, 400, 1500]))
    return Setting(tuple(kept.items()), size, draw(st.sampled_from([0, 0, 1, 2])),
                   draw(st.sampled_from([0, 0, 1, 3])))  # fmt: skip


class Work:
    """A cut that is to be made later, in its turn."""

    def __init__(self, cut: Callable[[], None], late: int) -> None:
        self.cut, self.late = cut, late
        self.over = False

    def done(self) -> bool:
        if not self.over and self.late == 0:
            self.over = True
            self.cut()
        self.late -= 1
        return self.over

    def cancel(self) -> bool:
        return not self.over

    def exception(self) -> None:
        assert self.over


@contextmanager
def pruned_by(setting: Setting) -> Iterator[None]:
    """Threads take their turns, at points that repeat: when a checkpoint is taken."""

    class Threads:
        def submit(self, cut: Callable[[], None]) -> Work:
            work = Work(cut, setting.late)
            work.done()
            return work

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recovery._pruning, "flushers", Threads())
        patch.setattr(recovery._pruning, "GAIN", setting.gain)
        yield


def check_kept(world: World, kept: Retention) -> int:
    """The newest checkpoints restore what they had; how many are there."""
    if not records(world.disk):
        return 0  # it died before there was a log
    sound = 0
    with EventLog.read(f"runs/{RUN}", files=world.disk) as reader:
        firsts = set()
        for snapshot in checkpoints_in(reader):
            restored = restore(reader, snapshot)
            found = prologue_in(reader, restored.prologue, restored.generation)
            assert len(found) == len(restored.prologue)
            firsts.add(restored.generation.first)
            sound += 1
            if sound >= kept.checkpoints and len(firsts) >= kept.generations:
                return sound
        assert reader.oldest_lsn == 1
    return sound
