"""Seeded bugs in exports, imports and what is made for other tools."""

from __future__ import annotations

from tests.mutants._mutant import Edit, Mutant

TRANSFER, LINES = "eventlog/transfer.py", "eventlog/_lines.py"
APPENDER = "eventlog/_appender.py"
COMMAND = "tools/logdump/_export.py"
SPANS, OTLP = "recovery/_spans.py", "tools/logdump/_otlp.py"
OTLP_VALUES, OTLP_JSON = "tools/logdump/_otlp_values.py", "tools/logdump/_otlp_json.py"

READ_BACK = "        if line != as_text(end_line(self.records, 0, self._made.hexdigest())):\n"

EVERY_VALUE = "property/test_transfer.py::test_every_value_comes_back_as_the_same_bytes"
EVERY_HISTORY = "property/test_transfer.py::test_every_history_comes_back"
CHANGED = "property/test_transfer.py::" + (
    "test_an_export_that_was_changed_or_cut_is_refused_and_leaves_nothing"
)
UNIT = "unit/test_transfer.py::"
TRACE = "integration/test_logdump_otlp.py::"
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
                "        if line != end_line(told, self.lost, self._digest.hexdigest()):\n",
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
                "            if self._reader.oldest_lsn > self.expected:\n",
                "            if False:\n",
            )
        ],
        [UNIT + "test_a_live_log_is_exported_and_one_that_is_truncated_meanwhile_is_not"],
    ),
    Mutant(
        "losses-marked-and-not-told",
        "An import marks what was lost, and no record says so: nobody can tell it from a kind of "
        "the log's user.",
        [Edit(TRANSFER, "            self._say_what_is_missing(self._log)\n", "")],
        [UNIT + "test_what_was_lost_can_be_marked_as_a_repair_marks_it"],
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
    Mutant(
        "spans-by-their-order",
        "Spans get new ids each time the run is exported: every trace is there twice.",
        [
            Edit(
                SPANS,
                """span_id(self._uid, "call", lsn))""",
                """span_id(self._uid, "call", lsn, len(self._open)))""",
            )
        ],
        [TRACE + "test_a_child_is_inside_the_call_that_started_it"],
    ),
    Mutant(
        "fork-tells-its-origin-again",
        "A fork tells what happened in the run that it came from: it is paid for twice.",
        [
            Edit(
                OTLP,
                "        until = origin.until if origin is not None else 0\n",
                "        until = 0\n",
            )
        ],
        [TRACE + "test_a_fork_links_to_its_origin_and_tells_only_its_own"],
    ),
    Mutant(
        "grandchild-in-a-trace-of-its-own",
        "The trace is that of the parent, not of the first run: a family falls apart.",
        [Edit(OTLP, "        for _ in range(DEPTH_MAX):\n", "        for _ in range(1):\n")],
        [TRACE + "test_a_child_of_a_child_is_in_the_trace_of_the_first"],
    ),
    Mutant(
        "values-told-unasked",
        "Arguments and results are in every trace.",
        [Edit(OTLP_VALUES, "        if not self._args.content:\n            return about\n", "")],
        [TRACE + "test_values_are_told_when_they_are_asked_for"],
    ),
    Mutant(
        "exceptions-told-in-full",
        "--redact leaves what an exception's message quotes.",
        [
            Edit(
                OTLP_VALUES, "_cut(self._redaction.text(span.error, span.name))", "_cut(span.error)"
            )
        ],
        [TRACE + "test_exceptions_are_hidden_as_well"],
    ),
    Mutant(
        "retry-ends-the-span",
        "A call that fails and is made again counts as failed.",
        [
            Edit(
                SPANS,
                "                call.span.exception(time_ns, event)\n",
                "                call.span.failed(time_ns, event)  # type: ignore[arg-type]\n",
            )
        ],
        [TRACE + "test_a_crash_a_retry_and_a_yes_are_events"],
    ),
    Mutant(
        "resumption-taken-for-a-crash",
        "A run that parked is told as one whose process died.",
        [
            Edit(
                SPANS,
                """        if self._status == "running":  # nothing""",
                """        if self._status:  # nothing""",
            )
        ],
        [TRACE + "test_a_crash_a_retry_and_a_yes_are_events"],
    ),
    Mutant(
        "span-in-a-step-that-was-lost",
        "A call of a step whose record is lost is inside a span that is not there.",
        [
            Edit(
                SPANS,
                "        elif step is not None and self._has_step(step):\n",
                "        elif step is not None:\n",
            )
        ],
        [TRACE + "test_a_damaged_log_is_told_as_far_as_it_goes"],
    ),
    Mutant(
        "call-inside-one-that-is-not-told",
        "A call that a fork makes inside one that it came with is inside a span that is not there.",
        [Edit(SPANS, "            self._touch(outer, lsn)\n", "")],
        ["property/test_spans.py::test_a_call_inside_one_that_a_fork_came_with_has_that_around_it"],
    ),
    Mutant(
        "doubt-taken-for-success",
        "A call in doubt is told as one that returned.",
        [
            Edit(
                SPANS,
                "self._gone(lsn, self._until + 1, self._last_ns, call.state)",
                'self._gone(lsn, self._until + 1, self._last_ns, "returned")',
            )
        ],
        [TRACE + "test_a_call_in_doubt_has_no_status_and_ends_where_the_log_does"],
    ),
    Mutant(
        "integers-as-numbers",
        "64-bit integers are JSON numbers with an exponent or none: readers round them.",
        [
            Edit(
                OTLP_JSON,
                """return {"intValue": str(value)}""",
                """return {"intValue": float(value) + 0.5}""",
            )
        ],
        [TRACE + "test_opentelemetrys_own_classes_read_it"],
    ),
]
