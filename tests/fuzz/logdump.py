"""The log-dump command on a directory that somebody has been at."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stderr, redirect_stdout
from unittest import mock

import logdump as command

from eventlog import EventLog, LogReader
from eventlog.errors import UnsupportedFormatError
from eventlog.read import verify as library
from recovery.cli.exit_codes import IO_ERROR, NO_INPUT, USAGE
from tests.fuzz._choices import Choices
from tests.fuzz._logs import Log, drawn

MISUSED = (USAGE, NO_INPUT, IO_ERROR)


def logdump(data: bytes) -> None:
    """The command ends with a code that it documents, shows what can be read, and hides nothing."""
    log = drawn(Choices(data))
    records, lost = _read(log)
    dump_code, dumped = _run(log, "dump", "--json")
    items = [json.loads(line) for line in dumped.splitlines()]
    _run(log, "dump")
    code, verified = _run(log, "verify", "--json")
    _run(log, "verify")
    if code == library.NOT_A_LOG or dump_code == library.NOT_A_LOG:
        return
    assert [item["lsn"] for item in items if item["type"] in ("record", "snapshot")] == records
    assert not lost or code & ~library.TORN
    totals = json.loads(verified.splitlines()[-1])
    assert totals["exit_code"] == code and totals["records"] == len(records)
    assert dump_code & ~code == 0 and not dump_code & library.TORN
    if not (log.accidents or log.forged):
        assert code in (0, library.TORN)


def _read(log: Log) -> tuple[list[int], bool]:
    """LSNs that a reader gives, and whether it reports any as lost."""
    damaged: list[object] = []
    try:
        with EventLog.read("log", files=log.disk) as reader:
            lsns = [record.lsn for record in reader.records(on_damage=damaged.append)]
    except UnsupportedFormatError:
        return [], False
    return lsns, bool(damaged)


def _run(log: Log, *arguments: str) -> tuple[int, str]:
    """Exit code and output of the command, which reads from this disk instead of the real one."""

    def read(path: str, encryption: None, files: object = None) -> LogReader:
        return open_log(path, files=log.disk, encryption=encryption)

    open_log, out, err = EventLog.read, io.StringIO(), io.StringIO()
    with (
        redirect_stdout(out),
        redirect_stderr(err),
        mock.patch.object(EventLog, "read", read),
        mock.patch.object(library, "LOOK_AGAIN_S", 0),
    ):
        code = command.main([*arguments, "log"])
    assert 0 <= code <= 63 or code in MISUSED
    assert "Traceback" not in err.getvalue()
    return code, out.getvalue()
