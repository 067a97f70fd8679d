"""The sweeps of the log, encrypted: what a crash leaves and what damage does is as in clear.

And what they leave is looked at as somebody without the key would: nothing of a record is there,
and no byte can be changed without its being seen.
"""

from __future__ import annotations

import logging
import os
import random
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from multiprocessing import get_context

import pytest

from eventlog import EventLog
from eventlog.dump import TORN, verify
from eventlog.encryption import Encryption
from eventlog.format.frame import FOOTER, HEADER_SIZE, frames_ahead, payload_of
from eventlog.format.names import segment_number
from eventlog.testing import Crash, SimulatedDisk
from recovery import Run, tool
from recovery.testing import crash_everywhere
from tests.conftest import Figures
from tests.property import test_damage as damage
from tests.property.encrypted import KEY, encrypted
from tests.property.histories import PROGRAM, TORN_SIZES, History, crashes, run
from tests.property.test_crash_states import HISTORIES, Sweep, nested, swept
from tests.property.test_damage import (
    Files,
    Log,
    check,
    check_exactly,
    flip,
    flipped,
    must_be_reported,
    places,
    taken_over,
)

# Where records are larger, segments end elsewhere: this takeover comes in the middle of one.
LOGS = {**damage.LOGS, "rolled, taken over": lambda: taken_over(PROGRAM[:13])}

# What records hold, and what they are called.
PLAIN = (b"x" * 8, b"event", b"part", b"snapshot", b"data")


@pytest.fixture(autouse=True)
def _encrypted() -> Iterator[None]:
    logging.disable()
    with encrypted():
        yield
    logging.disable(logging.NOTSET)


def nothing_is_there(disk: SimulatedDisk) -> None:
    """No record, and no nonce twice among frames that are not the same."""
    sealed: dict[bytes, bytes] = {}
    for entries in disk.directories.values():
        for name, file in entries.items():
            content = bytes(file.content)
            assert not any(word in content for word in PLAIN), name
            if segment_number(name) is not None:
                salt = content[56:60]
                for frame in frames_ahead(content, HEADER_SIZE, salt):
                    payload = payload_of(content, frame, salt)
                    if frame.kind != FOOTER and payload is not None:
                        head = 2 + payload[1] + 8
                        nonce = payload[head : head + 24]
                        assert sealed.setdefault(nonce, payload) == payload


class Hidden(Sweep):
    """A sweep that looks at each state without the key as well."""

    def check(self, history: History, disk: SimulatedDisk) -> bool:
        nothing_is_there(disk)
        new = super().check(history, disk)
        nothing_is_there(disk)
        return new


@pytest.mark.parametrize("name", ["small", "truncations", "reopened", "died"])
def test_every_state_of_a_short_history_is_sound_and_hidden(name: str, figures: Figures) -> None:
    sweep = Hidden()
    for history in crashes(HISTORIES[name], (0,)):
        sweep.losses(history, torn=False)
        sweep.sample(history, history.disk, 3)
    figures.add("power losses, encrypted, quick", states=sweep.states)
    assert sweep.states > 100


@pytest.mark.crash
def test_every_torn_state_of_a_short_history_encrypted(figures: Figures) -> None:
    parts = os.cpu_count() or 1
    with ProcessPoolExecutor(parts, get_context("fork")) as pool:
        jobs = [pool.submit(swept, "small", part, parts) for part in range(parts)]
        states = sum(job.result()[0] for job in jobs)
    figures.add("power losses, encrypted, exhaustive", histories=1, states=states)
    assert states > 10_000


@pytest.mark.crash
@pytest.mark.parametrize("name", HISTORIES)
def test_states_with_torn_writes_are_sound_and_hidden(name: str, figures: Figures) -> None:
    sweep = Hidden()
    for history in crashes(HISTORIES[name], TORN_SIZES):
        sweep.sample(history, history.disk, 10)
    figures.add("power losses, encrypted, several writes torn", states=sweep.states)
    assert sweep.states > 300


@pytest.mark.parametrize("name", ["small", "died"])
def test_a_crash_in_a_recovery_of_an_encrypted_log(name: str, figures: Figures) -> None:
    once, twice = nested(name, 1, 100)
    figures.add("crashes in recovery, encrypted", states=once, twice=twice)
    assert once > 50


def test_a_crash_while_a_log_in_clear_becomes_encrypted() -> None:
    """Stopped at each call, and after each power loss then: it goes on, and all is there."""
    accept = Encryption(bytes(range(32)), accept_clear=True)
    with encrypted(lambda: None):
        in_clear = run([("append", 5, "text"), ("snapshot", 3), ("commit",)])
        in_clear.drop()
    states = 0
    with encrypted(lambda: accept):
        for call in range(40):
            history = History(in_clear.disk.after_process_death())
            history.groups, history.committed = list(in_clear.groups), in_clear.committed
            history.disk.crash_at(call)
            crashed = True
            with suppress(Crash):
                history.open()
                history.do(("append", 9, "text"))
                history.do(("commit",))
                crashed = False
            sweep = Sweep()
            sweep.losses(history, torn=False)
            states += sweep.states
            history.drop()
            if not crashed:
                break
    assert not crashed and states > 20


# -- damage, with the key and without


def bits(disk: SimulatedDisk, key: Encryption | None) -> int:
    with EventLog.read("log", files=disk) as reader:
        reader.decoder.encryption = key
        findings = verify(reader)
        while True:
            try:
                next(findings)
            except StopIteration as end:
                return int(end.value.exit_code)


def check_seen(log: Log, files: Files, name: str, offset: int) -> None:
    """Whoever has not the key sees what is wrong, and as much of it as who has."""
    disk = log.disk(files)
    without, with_key = bits(disk, None), bits(disk, KEY)
    assert without == with_key
    if name in log.segment_names() and must_be_reported(log, name, offset):
        assert without & ~TORN, f"byte {offset} of {name}: not seen without the key"


@pytest.mark.parametrize("kind", ["small, closed", "small, crashed"])
def test_a_flipped_bit_is_seen_with_the_key_and_without(kind: str) -> None:
    log = Log(LOGS[kind]())
    for name, offset in list(places(log))[::19]:
        flip(log, name, offset, offset % 8)
        check_seen(log, flipped(log.files, name, offset, offset % 8), name, offset)


@pytest.mark.crash
@pytest.mark.parametrize("kind", LOGS)
def test_every_flipped_bit_is_seen_with_the_key_and_without(kind: str, rng: random.Random) -> None:
    log = Log(LOGS[kind]())
    small = kind.startswith("small")
    for name, offset in list(places(log))[:: 1 if small else 5]:
        one = rng.randrange(8)
        flip(log, name, offset, one)
        for bit in range(8) if small else (one,):
            check_seen(log, flipped(log.files, name, offset, bit), name, offset)


def test_an_encrypted_segment_cut_anywhere() -> None:
    log = Log(LOGS["rolled, closed"]())
    for name in log.segment_names():
        for size in range(0, len(log.files[name]), 41):
            files = {**log.files, name: log.files[name][:size]}
            assert check_exactly(log, files).silent == set()
            assert bits(log.disk(files), None) == bits(log.disk(files), KEY)


@pytest.mark.parametrize("kind", LOGS)
def test_a_lost_header_or_mark_costs_no_encrypted_record(kind: str) -> None:
    log = Log(LOGS[kind]())
    for name in (*log.segment_names(), "MARK"):
        broken = {**log.files, name: bytes(52) + log.files[name][52:]}
        assert check(log, broken).found >= log.acknowledged
        if name == "MARK":
            left = {other: data for other, data in log.files.items() if other != name}
            assert check(log, left).found >= log.acknowledged


# -- agents


def test_an_agent_with_encrypted_runs_survives_a_crash_anywhere() -> None:
    sent: list[str] = []

    @tool
    async def send(to: str) -> str:
        sent.append(to)
        return f"sent to {to}"

    @tool(after_crash="retry")
    async def look(at: str) -> str:
        return at * 2

    async def agent(run: Run) -> list[str]:
        async for step in run.steps():
            run.messages.append({"content": await run.call(look, f"q{step}")})
            run.messages.append({"content": await run.call(send, f"a{step}")})
            run.state["step"] = step
            if step == 3:
                break
        return [message["content"] for message in run.messages]

    report = crash_everywhere(agent, "task", effects=lambda: sent, setup=sent.clear, points=20)
    assert report.ok, str(report)
    assert {found.tool for found in report.findings if found.kind == "in doubt"} <= {"send"}
