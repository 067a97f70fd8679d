"""Seeded bugs in how people decide about runs, by the library and by the command."""

from __future__ import annotations

from tests.mutants._mutant import Edit, Mutant

CLI = "recovery/cli/"
DECIDING, RESUME = "cli/test_deciding.py::", "cli/test_resume.py::"
RESUMING, TYPES = "unit/test_recovery_resuming.py::", "unit/test_recovery_outside_types.py::"

MUTANTS = [
    Mutant(
        "one-of-several-calls",
        "A part of a key that means two calls is taken for the first: the wrong one is settled.",
        [Edit(CLI + "_calls.py", "    if len(found) == 1:\n", "    if found:\n")],
        [DECIDING + "test_a_name_that_is_several_is_refused"],
    ),
    Mutant(
        "tool-of-the-name-ignored",
        "charge#58 settles whatever call has LSN 58.",
        [Edit(CLI + "_calls.py", "if not sign or made == tool:", "if made or not sign:")],
        [DECIDING + "test_a_name_that_is_none_is_refused_with_those_there_are"],
    ),
    Mutant(
        "first-decision-shown",
        "Of two decisions about a call the first is shown, and the run takes the last.",
        [
            Edit(
                "recovery/_posted.py",
                "                found[at : at + 1] = [made]\n",
                "                pass\n",
            )
        ],
        [DECIDING + "test_a_decision_is_shown_and_makes_the_run_due"],
    ),
    Mutant(
        "any-signal-makes-due",
        "A signal that the run has not asked for yet makes it due: it is run again and again.",
        [Edit("recovery/_posted.py", "made, wanted=wanted)", "made, wanted=True)")],
        [DECIDING + "test_only_what_was_not_taken_lies_in_the_inbox"],
    ),
    Mutant(
        "resume-begins-a-run",
        "A run that was removed is begun anew by resuming it, without its task.",
        [Edit("recovery/_resuming.py", "if history.started is None:", "if False:")],
        [RESUMING + "test_it_never_begins_a_run"],
    ),
    Mutant(
        "resume-makes-a-directory",
        "Resuming a run that never was leaves an empty one.",
        [
            Edit(
                "recovery/_resuming.py",
                '        reader_of(store, self.run_id, ". Nothing was executed.").close()'
                "  # a claim would make it\n",
                "",
            )
        ],
        [RESUMING + "test_it_never_begins_a_run"],
    ),
    Mutant(
        "resolved-though-damaged",
        "A call is settled though the record that is lost may be its outcome.",
        [Edit("recovery/_resolve.py", "    found.check()\n", "")],
        [TYPES + "test_a_damaged_run_is_not_decided_about"],
    ),
    Mutant(
        "goes-on-without-being-asked",
        "Where there is nobody to ask, the command goes on.",
        [
            Edit(
                CLI + "_terminal.py",
                "    if not sys.stdin.isatty():\n        raise",
                "    if not sys.stdin.isatty():\n        return\n        raise",
            )
        ],
        [DECIDING + "test_without_a_terminal_nothing_is_done_unless_told_so"],
    ),
    Mutant(
        "ctrl-c-cuts-it-short",
        "The first Ctrl-C raises in the middle of what the agent does.",
        [
            Edit(
                CLI + "_resume.py",
                '        stop(f"{signal.Signals(number).name} received")\n',
                "        raise KeyboardInterrupt\n",
            )
        ],
        [RESUME + "test_ctrl_c_stops_it_with_nothing_in_doubt"],
    ),
    Mutant(
        "last-event-not-redacted",
        "The line of the last event shows what --redact was to hide.",
        [
            Edit(
                CLI + "_status.py",
                "HIDDEN if redaction.hides_any else one.last_event",
                "one.last_event",
            )
        ],
        [
            "cli/test_commands.py::test_output_is_golden"
            "[recovery-show-redact-send_mail-redact-query]"
        ],
    ),
]
