"""Seeded bugs in logdump dump: what it follows, chooses and says of the middle of a log."""

from __future__ import annotations

from tests.mutants._mutant import Edit, Mutant

READER, EXAMINE, LIBRARY = "eventlog/_reader.py", "eventlog/_examine.py", "eventlog/dump.py"
JSON = "eventlog/_json.py"
DUMP, ROWS, FOLLOW = (f"tools/logdump/_{name}.py" for name in ("dump", "rows", "follow"))
FILTER, RAW, LINES = (f"tools/logdump/_{name}.py" for name in ("filter", "raw", "lines"))

TESTS = "integration/test_logdump_dump.py::"
PROPERTY = "property/test_dump_json.py::"

MUTANTS = [
    Mutant(
        "dump-follow-stays-in-its-segment",
        "A follower looks for more in the segment that it knows: after a roll nothing comes.",
        [
            Edit(
                READER,
                "        if not numbers or numbers[-1] > position.number:\n"
                "            return bool(numbers)\n",
                "        if not numbers:\n            return False\n",
            )
        ],
        [TESTS + "test_follow_goes_on_over_segments_writers_takeovers_and_a_removal"],
    ),
    Mutant(
        "dump-follow-holds-lines-back",
        "What a follower has read waits in its buffer until there is more.",
        [
            Edit(FOLLOW, "        self._out.flush()\n", ""),
            Edit(DUMP, "                context.out.flush()\n", ""),
        ],
        [TESTS + "test_follow_says_what_a_run_does_as_it_does_it"],
    ),
    Mutant(
        "dump-follow-outlives-its-reader",
        "The pipe is closed while nothing comes: the follower goes on for ever.",
        [
            Edit(
                FOLLOW,
                "        elif self._poll.poll(self._pause_s * 1000):\n"
                "            raise BrokenPipeError\n",
                "        else:\n            time.sleep(self._pause_s)\n",
            )
        ],
        [TESTS + "test_follow_notices_a_closed_pipe_while_nothing_comes"],
    ),
    Mutant(
        "dump-tail-within-the-last-stretch",
        "--tail with a filter looks at the last records alone, and misses what is before them.",
        [Edit(DUMP, "if len(found) == most or begin <= first:", "if True:")],
        [TESTS + "test_tail_is_the_last_of_those_that_are_wanted"],
    ),
    Mutant(
        "dump-tail-one-too-many",
        "--tail N shows N + 1 records.",
        [Edit(DUMP, "return max(first, end - most + 1)", "return max(first, end - most)")],
        [TESTS + "test_tail_is_the_last_of_those_that_are_wanted"],
    ),
    Mutant(
        "dump-range-from-the-index-on",
        "A range begins where the index points, before what was asked for.",
        [
            Edit(
                LIBRARY,
                "            if item.records[0].lsn < first or item.records[-1].lsn > last:\n",
                "            if item.records[-1].lsn > last:\n",
            )
        ],
        [TESTS + "test_options_choose_records"],
    ),
    Mutant(
        "dump-range-checks-a-digest-it-has-not",
        "The footer's digest is compared with that of a part of the segment: damage that is none.",
        [Edit(EXAMINE, "if examined.whole and not digest_holds(", "if not digest_holds(")],
        [TESTS + "test_what_a_range_shows_is_what_the_whole_shows"],
    ),
    Mutant(
        "dump-filter-hides-damage",
        "Damage is shown only where no filter is given: a damaged log looks sound.",
        [
            Edit(
                DUMP,
                "            lines.show(item)\n        elif wanted",
                "            wanted.everything and lines.show(item)\n        elif wanted",
            )
        ],
        [TESTS + "test_damage_is_shown_whatever_is_asked_for"],
    ),
    Mutant(
        "dump-damage-of-elsewhere",
        "Damage before the range is shown, and sets the exit code.",
        [
            Edit(
                LIBRARY,
                "            if item.last_lsn < first:\n                continue\n",
                "",
            )
        ],
        [TESTS + "test_damage_is_shown_where_it_is_in_the_range_alone"],
    ),
    Mutant(
        "dump-middle-knows-no-run",
        "The middle of a log is told as if nothing had been before: attempts and steps are wrong.",
        [Edit(ROWS, "return max(first - WARM_UP, places", "return max(first, places")],
        [TESTS + "test_the_middle_of_a_log_says_the_same_as_all_of_it"],
    ),
    Mutant(
        "dump-step-made-up",
        "Where the step is not known, it is said to be the one before the first.",
        [Edit(ROWS, "self._knows_step = begin <= 1", "self._knows_step = True")],
        [TESTS + "test_a_step_that_is_not_known_is_not_made_up"],
    ),
    Mutant(
        "dump-doubt-is-no-error",
        "--errors leaves out the calls in doubt, for which somebody was woken up.",
        [
            Edit(
                FILTER, "row.kind in ERRORS or row.lsn in self.in_doubt or", "row.kind in ERRORS or"
            )
        ],
        [TESTS + "test_errors_are_what_failed_what_is_in_doubt_and_damage"],
    ),
    Mutant(
        "dump-bytes-of-what-is-hidden",
        "--raw shows in hex what --redact hides.",
        [Edit(LINES, "self._args.bytes, bool(self._args.redact))", "self._args.bytes, False)")],
        [TESTS + "test_bytes_are_not_shown_where_something_is_to_be_hidden"],
    ),
    Mutant(
        "dump-raw-takes-any-crc",
        "--raw calls each CRC right.",
        [Edit(RAW, 'f"{found:08x} ok" if found == right else', 'f"{found:08x} ok" if right else')],
        [TESTS + "test_raw_says_what_is_wrong_with_a_damaged_frame"],
    ),
    Mutant(
        "dump-json-merges-keys",
        "The fast way to JSON takes the last of two equal keys.",
        [Edit(JSON, 'if "$" in names or len(made) < len(pairs):', 'if "$" in names:')],
        [PROPERTY + "test_the_fast_way_to_json_is_the_same"],
    ),
    Mutant(
        "dump-json-too-deep",
        "The fast way to JSON writes what JSON readers refuse as too deep.",
        [Edit(JSON, "if not may_be_deep or not _is_deeper(value, JSON_DEPTH_MAX):", "if True:")],
        [PROPERTY + "test_what_is_too_deep_for_json_is_so_in_either_way"],
    ),
]
