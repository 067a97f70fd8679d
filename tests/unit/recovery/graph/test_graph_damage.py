"""Graphs whose log was spoiled in the ways that lose runs elsewhere: the newest checkpoint cut in
half, the index gone, and what is altered and can be read all the same."""

from __future__ import annotations

import asyncio
import re
from functools import cache
from typing import Any

import pytest

from eventlog.format.frame import FRAME_SIZE, SNAPSHOT, Frame, encode_frame
from eventlog.testing import SimulatedDisk
from recovery import CheckpointManager
from recovery.errors import DamagedRunError, DivergenceError
from recovery.graph import ExecutionResult, Graph, GraphExecutor, NodeContext
from tests.model.harm import frames
from tests.support.graphs import RUN, World, chain
from tests.support.lives import Died
from tests.unit.recovery.history.test_retention import Small

DONE = 12  # nodes of 20 that had ended when the process died in the next one


class Mortal(World):
    """A world in which a process dies in the node after these, once."""

    dead = False

    def enter(self, context: NodeContext) -> None:
        super().enter(context)
        if context.node_id == f"n{DONE}" and not self.dead:
            self.dead = True
            raise Died


def graph_of(world: World) -> Graph:
    """20 nodes in a row, and a way past some of them that is not taken."""
    graph = chain(world)
    graph.edge("n11", "n18", lambda output, memory: False)
    return graph


@cache
def died() -> SimulatedDisk:
    disk, world = SimulatedDisk(seed=1), Mortal()
    executor = GraphExecutor(checkpoint_manager=CheckpointManager(Small(disk)))
    with pytest.raises(Died):
        asyncio.run(executor.execute(graph_of(world), "goal", {}, RUN))
    assert [*world.made] == [f"n{i}" for i in range(DONE)]
    return disk


class Spoiled:
    """What the dead process has left, on a disk of its own, to be spoiled and resumed."""

    def __init__(self) -> None:
        self.disk = died().after_process_death()
        self.frames = frames(self.disk)
        self.checkpoints = [one for one in self.frames if one[1].kind == SNAPSHOT]
        self.world = World()

    def content(self, name: str) -> bytearray:
        content = self.disk.directories[f"runs/{RUN}"][name].content
        assert isinstance(content, bytearray)
        return content

    def cut_in_half(self, checkpoints: list[tuple[str, Frame]]) -> None:
        for name, frame in checkpoints:
            content, middle = self.content(name), (frame.offset + frame.payload_end) // 2
            content[middle : frame.payload_end] = bytes(frame.payload_end - middle)

    @property
    def manager(self) -> CheckpointManager:
        return CheckpointManager(Small(self.disk.after_process_death()))

    def resume(self, run_id: str = RUN, manager: CheckpointManager | None = None) -> Any:
        self.world.entered.clear()
        executor = GraphExecutor(checkpoint_manager=manager or self.manager)
        return executor.resume_sync(graph_of(self.world), run_id)

    def check(self, result: ExecutionResult, done: int = DONE) -> None:
        """The graph came to its end, and nothing that was done before was done again."""
        assert result.path == [f"n{i}" for i in range(20)]
        assert [name for name, _ in self.world.entered] == result.path[done:]
        assert [*self.world.made] == result.path[done:]
        assert result.output["n11"] == [["n11", 3], "sent n11", 11]


@pytest.mark.parametrize("spoiled", [1, 5, DONE])
def test_the_newest_checkpoints_cut_in_half_cost_no_node(spoiled: int) -> None:
    """Others begin at the first node then, in silence, with older ones there that are good."""
    run = Spoiled()
    assert len(run.checkpoints) == DONE
    run.cut_in_half(run.checkpoints[-spoiled:])
    manager = run.manager
    sound = [one for one in manager.list_checkpoints(RUN) if one.validity]
    assert len(sound) == DONE - spoiled
    result = run.resume(manager=manager)
    run.check(result)
    assert result.report.from_step == DONE - spoiled
    assert len(result.report.damage) == spoiled, "not told"


def test_a_log_that_ends_in_its_newest_checkpoint_is_refused_and_forked_before_it() -> None:
    """What was behind it is gone as well, and that may have been effects: nobody guesses."""
    run = Spoiled()
    (name, frame), (_, last) = run.checkpoints[-1], run.frames[-1]
    del run.content(name)[(frame.offset + frame.payload_end) // 2 :]
    for later in [one for one, _ in run.frames if one > name]:
        del run.disk.directories[f"runs/{RUN}"][later]
    manager = run.manager
    with pytest.raises(DamagedRunError, match=rf"LSN {frame.lsn}-{last.lsn} lost"):
        run.resume(manager=manager)
    assert run.world.entered == []
    assert [one.state for one in manager.unfinished()] == ["damaged"]
    manager.store.run(RUN).fork("fork", at_step=DONE - 1)
    run.check(run.resume("fork", manager), DONE - 1)


def test_there_is_no_index_to_lose() -> None:
    """Without footers and mark an older checkpoint, in another segment, is found all the same."""
    run = Spoiled()
    directory = run.disk.directories[f"runs/{RUN}"]
    *sealed, last = sorted({name for name, _ in run.frames})
    assert len(sealed) > 3
    del directory["MARK"]
    for name in sealed:
        end = max(frame.end for one, frame in run.frames if one == name)
        assert end < len(run.content(name))
        del run.content(name)[end:]
    newest = [one for one in run.checkpoints if one[0] == last]
    run.cut_in_half(newest)
    result = run.resume()
    run.check(result)
    assert result.report.from_step == DONE - len(newest)
    assert len(result.report.damage) == len(newest)


def altered(run: Spoiled, name: str, frame: Frame, old: bytes, new: bytes, forged: bool) -> None:
    """Have a frame say something else of the same length; ``forged``: its checksums hold."""
    content = run.content(name)
    payload = content[frame.payload_offset : frame.payload_end].replace(old, new)
    if forged:
        marks = frame.lsn, frame.durable, frame.snapshot
        whole = encode_frame(frame.salt, frame.kind, frame.count, bytes(payload), marks)
        content[frame.offset : frame.end] = whole
    else:
        content[frame.offset + FRAME_SIZE : frame.payload_end] = payload


def naming(run: Spoiled, what: bytes) -> list[tuple[str, Frame]]:
    return [
        (name, frame)
        for name, frame in run.frames
        if what in run.content(name)[frame.payload_offset : frame.payload_end]
    ]


@pytest.mark.parametrize(("forged", "error"), [(False, DamagedRunError), (True, DivergenceError)])
def test_a_run_that_is_altered_and_can_be_read_skips_nothing(
    forged: bool, error: type[Exception]
) -> None:
    """Others follow it: 6 of 20 nodes are left out, and that is called a success."""
    ended, begun = naming(Spoiled(), b"n12")  # where n11 led to, and the visit that was cut short
    for places in [ended], [begun], [ended, begun]:
        run = Spoiled()
        for name, frame in places:
            altered(run, name, frame, b"n12", b"n18", forged)
        manager = run.manager
        restored = manager.restore(RUN)
        assert restored is not None
        assert (restored.step, restored.next_nodes) == (
            (DONE - 1, ["n11"]) if ended in places else (DONE, ["n12"])
        )
        if forged and len(places) > 1:  # both, made right in all their checksums: a forgery
            continue
        with pytest.raises(error) as refused:
            run.resume(manager=manager)
        assert not forged or re.search(
            r"now: node n1\d, .*, in a task of its own", str(refused.value)
        )
        assert run.world.entered == []
