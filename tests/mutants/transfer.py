"""Seeded bugs in exports, imports and what is made for other tools."""

from __future__ import annotations

from tests.mutants._mutant import Edit, Mutant

TRANSFER, LINES = "eventlog/transfer.py", "eventlog/_lines.py"
APPENDER = "eventlog/_appender.py"
COMMAND = "tools/logdump/_export.py"

READ_BACK = '        if line.encode() + b"\\n" != self._end:\n'

EVERY_VALUE = "property/test_transfer.py::test_every_value_comes_back_as_the_same_bytes"
EVERY_HISTORY = "property/test_transfer.py::test_every_history_comes_back"
CHANGED = "property/test_transfer.py::" + (
    "test_an_export_that_was_changed_or_cut_is_refused_and_leaves_nothing"
)
UNIT = "unit/test_transfer.py::"
CRASHES = UNIT + "test_a_crash_at_every_call_leaves_the_whole_log_or_none_under_its_name"

MUTANTS = [
    Mutant(
        "export-by-value",
        "A body is exported as the JSON of its value: single floats, doubled keys and wide "
        "integers come back as other bytes, and digests of what they are part of fail.",
        [Edit(LINES, "        if _packed(value) == packed:\n", "        if True:\n")],
        [EVERY_VALUE],
    ),
    Mutant(
        "export-forgets-batches",
        "Batches are exported as single records: after a crash a half of one may be there.",
        [
            Edit(
                TRANSFER,
                "record_line(_as_line(record, batch))",
                "record_line(_as_line(record, (record.lsn, record.lsn)))",
            )
        ],
        [EVERY_HISTORY],
    ),
    Mutant(
        "import-begins-at-1",
        "The log of a truncated run begins at LSN 1: what it refers to by LSN is something else.",
        [Edit(TRANSFER, "        if oldest_lsn > 1:\n", "        if oldest_lsn > 1 << 62:\n")],
        [UNIT + "test_a_truncated_log_begins_where_it_began_also_when_nothing_is_left"],
    ),
    Mutant(
        "truncated-log-looks-damaged",
        "What is before a truncated log's first record is not said to be gone on purpose.",
        [
            Edit(
                APPENDER,
                "                self.next_lsn = self.oldest_lsn = lsn\n",
                "                self.next_lsn = lsn\n",
            )
        ],
        [UNIT + "test_a_truncated_log_begins_where_it_began_also_when_nothing_is_left"],
    ),
    Mutant(
        "import-in-place",
        "The log is made under its own name: a crash leaves a half log that looks whole.",
        [
            Edit(
                TRANSFER,
                'target.with_name(f".{target.name}.importing-{files.random_bytes(4).hex()}")',
                "target",
            ),
            Edit(
                TRANSFER,
                "        _check_free(files, str(target))\n"
                "        files.move(str(making), str(target))\n",
                "",
            ),
        ],
        [CRASHES],
    ),
    Mutant(
        "import-believes-its-lines",
        "The digest in the last line is not looked at: an edited export is a run's past.",
        [
            Edit(
                TRANSFER,
                "        if line != end_line(self.records, 0, self._digest.hexdigest()):\n",
                "        if False:\n",
            ),
            Edit(TRANSFER, READ_BACK, "        if False:\n"),
        ],
        [CHANGED],
    ),
    Mutant(
        "import-is-not-read-back",
        "What was written is not compared with the export: lines that no export has are taken.",
        [Edit(TRANSFER, READ_BACK, "        if False:\n")],
        [UNIT + "test_bad_lines_are_refused_by_number_and_nothing_is_left"],
    ),
    Mutant(
        "loss-without-a-line",
        "Records that are lost are missing in the export without a word.",
        [
            Edit(
                TRANSFER,
                "            yield lost_line(self.expected, last,",
                "            lost_line(self.expected, last,",
            )
        ],
        [UNIT + "test_lost_records_are_a_line_in_their_place_and_are_not_imported"],
    ),
    Mutant(
        "loss-at-the-end-without-a-line",
        "Records lost at the end of the log are missing in the export without a word.",
        [Edit(TRANSFER, "        yield from self._lost(self._lost_lsn)\n", "")],
        [UNIT + "test_a_missing_segment_is_lost_records"],
    ),
    Mutant(
        "truncation-taken-for-loss",
        "Retention that removes segments while they are exported makes them lost.",
        [
            Edit(
                TRANSFER,
                "            if self._reader.listing.oldest_lsn() > self.expected:\n",
                "            if False:\n",
            )
        ],
        [UNIT + "test_a_live_log_is_exported_and_one_that_is_truncated_meanwhile_is_not"],
    ),
    Mutant(
        "export-without-inbox",
        "What others have sent to a run stays behind: a yes, a no, an end.",
        [Edit(COMMAND, "        yield INBOX, reader\n", "        yield from ()\n")],
        ["integration/test_logdump_export.py::test_there_and_back_is_the_same"],
    ),
    Mutant(
        "name-of-a-log-leads-out",
        "The name of a log in an export becomes a path as it is: it is written anywhere.",
        [
            Edit(
                LINES,
                "if type(name) is not str or not _NAME.fullmatch(name):",
                "if type(name) is not str:",
            )
        ],
        [UNIT + "test_bad_lines_are_refused_by_number_and_nothing_is_left"],
    ),
]
