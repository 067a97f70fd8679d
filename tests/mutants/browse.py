"""Seeded bugs in logdump browse: where it goes, and what it shows."""

from __future__ import annotations

from tests.mutants._mutant import Edit, Mutant

APP, LOG = "tools/logdump/_browse_app.py", "tools/logdump/_browse_log.py"
TEST = "cli/test_browse.py::"

MUTANTS = [
    Mutant(
        "browse-takes-values-for-markup",
        "What a tool returned can hide itself, look like something else, or be a link.",
        [
            Edit(
                APP,
                'update(Text("\\n".join(lines)))',
                'update(Text.from_markup("\\n".join(lines)))',
            )
        ],
        [TEST + "test_what_is_in_a_log_is_neither_markup_nor_sent_raw"],
    ),
    Mutant(
        "browse-ends-with-the-page",
        "Of a long log only what was read first can be reached.",
        [Edit(APP, "behind < self._height and len(self._lines) == PAGE", "False")],
        [TEST + "test_every_line_of_a_log_is_passed_once_in_order"],
    ),
    Mutant(
        "browse-forgets-at-which-problem-it-is",
        "With the next page, the cursor jumps from a problem to a record.",
        [Edit(APP, "self._read(self.line.at, self.line.finding)", "self._read(self.line.at)")],
        [TEST + "test_every_line_of_a_log_is_passed_once_in_order"],
    ),
    Mutant(
        "browse-stays-at-the-problem",
        "The next problem is the one where it is already.",
        [Edit(LOG, "behind = line.is_of(at, item)\n                continue", "behind = True")],
        [TEST + "test_n_and_p_go_to_what_dump_calls_errors"],
    ),
    Mutant(
        "browse-looks-back-over-one-stretch-only",
        "A problem far back is not there.",
        [Edit(LOG, "            last = first - 1\n", "            return\n")],
        [TEST + "test_n_and_p_go_to_what_dump_calls_errors"],
    ),
    Mutant(
        "browse-hears-of-a-search-that-was-stopped",
        "Somebody else's cursor is moved by what was given up.",
        [Edit(APP, "            elif not worker.is_cancelled:\n", "            else:\n")],
        [TEST + "test_a_search_can_be_stopped"],
    ),
    Mutant(
        "browse-shows-what-is-to-be-redacted",
        "The value on the right is shown whatever --redact says.",
        [
            Edit(
                LOG,
                "line.kind, line.tool, self._redaction))",
                "line.kind, line.tool, Redaction()))",
            )
        ],
        [TEST + "test_what_is_redacted_is_on_no_screen"],
    ),
    Mutant(
        "browse-has-colours-of-its-own",
        "NO_COLOR leaves greys.",
        [Edit(APP, "super().__init__(ansi_color=True)", "super().__init__()")],
        [TEST + "test_no_color_is_heeded"],
    ),
]
