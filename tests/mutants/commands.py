"""Seeded bugs in what the commands say of damage, and in how they end."""

from __future__ import annotations

from tests.mutants._mutant import Edit, Mutant

CONSEQUENCES, VERIFY = "recovery/_consequences.py", "tools/logdump/_verify.py"
EXAMINE, SCAN, OTLP = "eventlog/_examine.py", "eventlog/_scan.py", "tools/logdump/_otlp.py"
CONSOLE = "recovery/cli/_console.py"

SAID = "unit/test_recovery_consequences.py::"
CLI, RESUME = "cli/test_verify.py::", "cli/test_resume.py::"

MUTANTS = [
    Mutant(
        "resume-blames-the-agent-for-the-disk",
        "A full or read-only disk under the store is told as an error of the agent's code.",
        [Edit("recovery/cli/_resume.py", "_store_failed(exc, agent.store) or ", "")],
        [RESUME + "test_a_store_that_cannot_be_written_is_not_blamed_on_the_agent"],
    ),
    Mutant(
        "resume-runs-a-tool",
        "A tool that is named for the agent is called: a side effect that nobody has asked for.",
        [
            Edit(
                "recovery/cli/_resume.py",
                'if isinstance(getattr(found, "tool_spec", None), ToolSpec):',
                "if False:",
            )
        ],
        [RESUME + "test_what_is_no_agent_is_not_called"],
    ),
    Mutant(
        "errors-name-no-directory",
        "An error of the system says the bare name of a file in some directory or other.",
        [
            Edit(
                "eventlog/_directories.py",
                "            error.filename, error.filename2 = self._path, None\n",
                "            pass\n",
            )
        ],
        ["unit/test_files.py::test_an_error_of_the_system_has_the_path_that_it_is_about"],
    ),
    Mutant(
        "timeline-is-written-in-place",
        "A page that cannot be written whole takes the place of the one that was there.",
        [
            Edit(
                "tools/logdump/_timeline.py",
                "if target.exists() and not target.is_file():",
                "if True:",
            )
        ],
        ["cli/test_timeline.py::test_what_is_there_stays_until_a_page_is_whole"],
    ),
    Mutant(
        "verify-forgets-what-a-checkpoint-refers-to",
        "Damage is called harmless that a recovery stops at: the checkpoint needs a message in it.",
        [Edit(CONSEQUENCES, "if any(lsn in lost for lsn in needed):", "if False:")],
        [SAID + "test_messages_that_a_checkpoint_refers_to_are_needed_by_it"],
    ),
    Mutant(
        "verify-names-no-calls",
        "The calls whose outcomes are lost are not named.",
        [Edit(CONSEQUENCES, "if call.lsn < finding.last_lsn", "if call.lsn > finding.last_lsn")],
        [SAID + "test_calls_whose_outcomes_are_lost_are_named"],
    ),
    Mutant(
        "verify-leaves-the-inbox-out",
        "Damage to what was sent to a run is not found.",
        [Edit(VERIFY, "if has_segments(Path(path, INBOX)):", "if False:")],
        [CLI + "test_the_inbox_of_a_run_is_verified_with_it"],
    ),
    Mutant(
        "verify-does-not-know-the-next-frame",
        "Whoever salvages by hand is told that nothing sound comes behind the damage.",
        [Edit(EXAMINE, "yield from _settled(held, frame.offset)", "yield from _settled(held, 0)")],
        [CLI + "test_a_problem_says_where_it_is_and_what_it_means"],
    ),
    Mutant(
        "torn-frames-without-payloads-count-as-whole",
        "The header of a frame is all that was written of it, and it is said to be whole.",
        [Edit(SCAN, "frame.end <= end and payload_of(", "frame.end <= end or payload_of(")],
        ["unit/test_scan.py::"
         "test_a_bad_frame_that_nothing_calls_durable_is_torn_with_all_behind_it"],
    ),
    Mutant(
        "rich-ends-a-closed-pipe",
        "A closed pipe is exit code 1 where a table is shown, as if something had been found.",
        [Edit(CONSOLE, "raise BrokenPipeError", "raise SystemExit(1)")],
        ["cli/test_commands.py::test_a_closed_pipe_ends_it_silently"],
    ),
    Mutant(
        "otlp-reads-a-forged-intent",
        "A forged record ends the command in a traceback.",
        [Edit(OTLP, "except ValueError:  # it makes no sense", "except KeyError:")],
        ["cli/test_fuzz.py::test_a_call_that_is_made_again_and_whose_intent_makes_no_sense"],
    ),
]  # fmt: skip
