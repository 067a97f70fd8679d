"""Directories of logs that a fuzzer has had its hands on."""

from __future__ import annotations

from dataclasses import dataclass, field

from eventlog import EventLog, Packed
from eventlog.format.frame import HEADER_SIZE
from eventlog.format.record import pack
from eventlog.testing import SimulatedDisk
from eventlog.write.log import Durability
from tests.fuzz._bytes import repaired
from tests.fuzz._choices import Choices

PATH = "log"
DURABILITIES: tuple[Durability, ...] = ("power", "process", "none")
SEGMENT_SIZES = (8 << 20, 200, 900, 3000)
NAMES = (
    "00000001.seg",
    "00000002.seg",
    "00000003.seg",
    "MARK",
    "LOCK",
    "99999999.seg",
    "4294967295.seg",
    "9999999999.seg",
    "00000002.seg.9c41d2a7.new",
    "00000000.seg",
    "notes",
)


@dataclass
class Log:
    """A directory on a disk, and what is known of it.

    ``appended`` has what was ever appended under an LSN; ``committed`` records are durable.
    ``accidents`` counts what befell it since: one of them loses nothing without a word. When it is
    ``forged``, its checksums may hold for what nobody has written.
    """

    disk: SimulatedDisk = field(default_factory=SimulatedDisk)
    appended: dict[int, set[tuple[str, bytes]]] = field(default_factory=dict)
    committed: int = 0
    accidents: int = 0
    forged: bool = False

    @property
    def files(self) -> dict[str, bytearray]:
        return {name: file.content for name, file in self.disk.directories[PATH].items()}


def drawn(choices: Choices) -> Log:
    """A log and what befell it, or files that look like one."""
    log = Log()
    if choices.number(0, 3) == 3:
        log.forged = True
        log.disk.make_directory(PATH)
        for _ in range(choices.number(0, 4)):
            _put(log, choices.pick(NAMES), _forged(choices))
        return log
    _write(choices, log)
    log.disk = log.disk.after_process_death()
    for _ in range(choices.number(0, 4)):
        if log.files:
            _befall(choices, log)
    return log


def _put(log: Log, name: str, content: bytes) -> None:
    directory = log.disk.make_directory(PATH)
    file = directory.open(name, write=True, create=True)
    file.truncate(0)
    file.pwrite(content, 0)


def _forged(choices: Choices) -> bytes:
    if choices.flag():
        return repaired(choices.blob(2000), leave_header=choices.flag())
    return choices.blob(600)


# -- a log, as a writer leaves it


def _write(choices: Choices, log: Log) -> None:
    durability = choices.pick(DURABILITIES)
    size = choices.pick(SEGMENT_SIZES)

    def opened() -> EventLog:
        writer = EventLog.open(PATH, durability, segment_size=size, files=log.disk)
        log.committed = max(log.committed, writer.durable_lsn)
        return writer

    writer = opened()
    for _ in range(choices.number(0, 10)):
        match choices.number(0, 5):
            case 0 | 1:
                _append(choices, log, writer)
            case 2:
                writer.commit()
            case 3:
                writer.close()
                writer = opened()
            case 4:
                writer._release()  # the process died
                log.disk = log.disk.after_process_death()
                writer = opened()
            case _:
                state = Packed(pack(_body(choices, log)))
                _note(log, writer.append_snapshot(state), ("snapshot", state))
        log.committed = max(log.committed, writer.durable_lsn)
    if choices.flag():
        writer.close()
        log.committed = writer.durable_lsn
    writer._release()


def _append(choices: Choices, log: Log, writer: EventLog) -> None:
    items = [("event", Packed(pack(_body(choices, log)))) for _ in range(choices.number(1, 3))]
    for lsn, item in zip(writer.append_batch(items), items, strict=True):
        _note(log, lsn, item)


def _note(log: Log, lsn: int, item: tuple[str, bytes]) -> None:
    log.appended.setdefault(lsn, set()).add((item[0], bytes(item[1])))


def _body(choices: Choices, log: Log) -> object:
    """A text, some bytes, or a piece of this log: an agent may record what it has read."""
    size = choices.number(0, 400)
    match choices.number(0, 3):
        case 0:
            return "x" * size
        case 1:
            return choices.blob(60)
        case 2:
            return bytes(size)
    content = log.files.get("00000001.seg", bytearray())
    return bytes(content[HEADER_SIZE + size % 8 :][:2000])


# -- what befalls it


def _befall(choices: Choices, log: Log) -> None:
    """One accident, or one piece of work of somebody who means ill."""
    log.accidents += 1
    names = sorted(log.files)
    name = names[choices.number(0, len(names) - 1)]
    content = log.files[name]
    at = choices.number(0, 0xFFFF) % (len(content) + 1)
    size = choices.number(0, 300)
    match choices.number(0, 9):
        case 0 | 1:
            content[at : at + 1] = bytes(byte ^ 1 << size % 8 for byte in content[at : at + 1])
        case 2:
            content[at : at + size] = bytes(len(content[at : at + size]))
        case 3:
            del content[at:]
        case 4:
            content[at:at] = choices.blob(100)
        case 5:
            content[at : at + size] = choices.blob(100)
        case 6:  # misdirected: what belongs elsewhere, in this file or another one
            source = log.files[choices.pick(names)]
            begin = choices.number(0, 0xFFFF) % (len(source) + 1)
            content[at : at + size] = source[begin : begin + size]
        case 7:
            del log.disk.directories[PATH][name]
        case 8:
            entries = log.disk.directories[PATH]
            to = choices.pick(NAMES)
            log.accidents += to in entries and to != name  # and that one is lost
            entries[to] = entries.pop(name)
        case _:
            _forge(choices, log, name, at)


def _forge(choices: Choices, log: Log, name: str, at: int) -> None:
    log.forged = True
    content = bytes(log.files[name])
    if choices.flag():
        _put(log, choices.pick(NAMES), _forged(choices))
    elif choices.flag():
        _put(log, choices.pick(NAMES), content)
    else:
        changed = content[:at] + choices.blob(60) + content[at:]
        _put(log, name, repaired(changed, leave_header=choices.flag()))
