"""Seeded bugs in the repair of damaged logs."""

from __future__ import annotations

from tests.mutants._mutant import Edit, Mutant

REPAIR, LAYOUT, REWRITE, BACKUP = (
    "eventlog/repair.py", "eventlog/_layout.py", "eventlog/_rewrite.py", "eventlog/_backup.py",
)  # fmt: skip
LOST, REPLAY, CALL, ATTEMPTS, APPROVAL, HISTORY, CONVERSATION, CHILDREN, KEYS, DOUBT, WAITING = (
    f"recovery/_{name}.py" for name in (
        "lost", "replay", "call", "attempts", "approval", "history", "conversation", "children",
        "keys", "doubt", "waiting",
    )
)  # fmt: skip
RUNS = "property/test_repaired_runs.py::test_nothing_is_done_twice_behind_a_repair"
ONE = "unit/test_recovery_repaired.py::"
UNIT = "unit/test_recovery_lost.py::"
REPAIRS = "property/test_repair.py::"
CRASHES = REPAIRS + "test_a_crash_at_every_call_leaves_all_that_was_readable_and_can_be_repaired"
FAULTS = REPAIRS + "test_every_single_fault_is_repaired"

MUTANTS = [
    Mutant(
        "backup-named-before-it-is-whole",
        "The backup has its name while it is being made: after a crash half a copy passes for one.",
        [
            Edit(BACKUP, '    unfinished = f"{backup}.part"\n', "    unfinished = backup\n"),
            Edit(BACKUP, "        files.move(unfinished, backup)\n", "        pass\n"),
        ],
        [CRASHES],
    ),
    Mutant(
        "backup-not-flushed",
        "The copies in a backup are not flushed: a power loss leaves names, and nothing in them.",
        [Edit(BACKUP, "            copy.sync()\n", "")],
        [CRASHES],
    ),
    Mutant(
        "backup-after-the-repair-began",
        "The first segment is made anew before there is a backup.",
        [
            Edit(
                REPAIR,
                "    planned = replace(_plan(reader, seen, slots), "
                "backup=back_up(files, directory.path))\n    for slot in slots:\n",
                "    planned = _plan(reader, seen, slots)\n    for slot in slots:\n"
                "        if slot is slots[-1]:\n"
                "            planned = replace(planned, backup=back_up(files, directory.path))\n",
            )
        ],
        [CRASHES],
    ),
    Mutant(
        "sound-record-dropped",
        "What stands behind the damage in its segment is lost with it.",
        [
            Edit(
                REWRITE,
                "        if not isinstance(reader.decoder.examine(slot.place, *item), str):\n"
                "            yield item\n",
                "        if not isinstance(reader.decoder.examine(slot.place, *item), str):\n"
                "            yield item\n        else:\n            return\n",
            )
        ],
        [REPAIRS + "test_a_damaged_snapshot_costs_itself"],
    ),
    Mutant(
        "loss-not-declared",
        "Placeholders are written, and no record says of which LSNs, by whom, and why.",
        [
            Edit(
                REPAIR,
                '"lost": [[loss.first_lsn, loss.last_lsn] for loss in done.lost],',
                '"lost": [],',
            )
        ],
        [FAULTS],
    ),
    Mutant(
        "interrupted-repair-forgotten",
        "A repair that died before its last record is never finished: nothing says what was lost.",
        [
            Edit(
                REPAIR,
                "return bool(self.segments or self.unfinished)",
                "return bool(self.segments)",
            )
        ],
        [CRASHES],
    ),
    Mutant(
        "replaced-before-it-is-durable",
        "The new segment has its name before it is flushed: a power loss takes old and new.",
        [
            Edit(
                REWRITE,
                "            writer.seal(Mark(self._slot.next - 1, snapshot), clean=False)\n",
                "            file.sync = lambda: None\n"
                "            writer.seal(Mark(self._slot.next - 1, snapshot), clean=False)\n",
            )
        ],
        [CRASHES],
    ),
    Mutant(
        "foreign-segment-overwritten",
        "A segment of another log is taken for one that is lost, and overwritten.",
        [Edit(LAYOUT, "        if finding.bit & NOT_A_LOG:\n", "        if False:\n")],
        [REPAIRS + "test_what_is_of_another_log_is_refused_and_not_touched"],
    ),
    Mutant(
        "not-read-back",
        "What was written is not compared: a disk that garbles it leaves a log that is worse.",
        [
            Edit(
                REWRITE,
                "            self._check(file.pread(file.size(), 0), digest.digest())\n",
                "",
            )
        ],
        [REPAIRS + "test_what_does_not_read_back_never_gets_its_name"],
    ),
    Mutant(
        "live-log-repaired",
        "The log is repaired under its writer.",
        [Edit(REPAIR, "last_epoch, takeover=False)", "last_epoch, takeover=True)")],
        [REPAIRS + "test_a_log_that_somebody_has_is_not_repaired"],
    ),
    Mutant(
        "lost-call-taken-for-new",
        "A call that may be among what is lost is executed as if it had never been made.",
        [
            Edit(
                CALL,
                "if not losses.hides(key, _accounted_for(losses)):",
                "if True:",
            )
        ],
        [RUNS],
    ),
    Mutant(
        "loss-ends-with-its-step",
        "Only calls of the step under way may be lost: those of later steps are made again.",
        [
            Edit(
                LOST,
                "self.gaps.append(Gap(first, last, self.step, self._high + count - 1))",
                "self.gaps.append(Gap(first, last, self.step, self._high))",
            )
        ],
        [UNIT + "test_each_step_that_may_have_begun_takes_a_record_and_so_does_the_call"],
    ),
    Mutant(
        "steps-behind-the-repair-bound-the-loss",
        "A step that is recorded anew after the repair counts as evidence of when it first began.",
        [
            Edit(
                LOST,
                "if not gap.repaired and not gap.is_bounded and step > gap.begun:",
                "if not gap.is_bounded and step > gap.begun:",
            )
        ],
        [UNIT + "test_a_step_that_begins_behind_the_repair_says_nothing_of_when_it_did_before"],
    ),
    Mutant(
        "calls-inside-a-presumed-call-are-new",
        "A repeatable call whose record is lost is made again, and the side effects inside it too.",
        [Edit(LOST, "        if outer in self.presumed:\n", "        if False:\n")],
        [RUNS],
    ),
    Mutant(
        "keys-of-inner-calls-follow-the-log",
        "What is made inside a call that is recorded anew is another call to the outside world.",
        [Edit(KEYS, "if not outer or key.tool.startswith(UNDO_PREFIX):", "if True:")],
        [ONE + "test_what_is_made_inside_a_call_whose_intent_is_lost_is_known_by_its_key"],
    ),
    Mutant(
        "code-that-strayed-is-counted",
        "The agent does other things than it did, and what it then comes to is taken for new.",
        [
            Edit(
                LOST,
                "if before + 1 > self.room and not self.strayed:",
                "if before + 1 > self.room:",
            )
        ],
        [ONE + "test_an_agent_that_may_do_something_else_meets_what_is_lost_later"],
    ),
    Mutant(
        "steps-of-code-that-strayed-are-counted",
        "The same, of what it comes to in a later step.",
        [
            Edit(
                LOST,
                "self._spent + 1 > self.room and not self.strayed:",
                "self._spent + 1 > self.room:",
            )
        ],
        [UNIT + "test_code_that_was_given_something_else_may_come_to_what_is_lost_later"],
    ),
    Mutant(
        "outcome-that-is-there-counts-as-lost",
        "Of a call the intent is lost and the outcome is not: it accounts for two lost records.",
        [Edit(LOST, " + len(self._orphans)", "")],
        [UNIT + "test_an_outcome_that_is_not_lost_accounts_for_nothing"],
    ),
    Mutant(
        "signal-of-a-lost-wait-waited-for-again",
        "A wait whose record is lost waits for a signal that was taken: nobody sends it again.",
        [
            Edit(
                WAITING,
                "        if losses is None or call.lsn not in losses.presumed:",
                "        if True:",
            )
        ],
        [
            ONE
            + "test_a_signal_that_was_taken_by_a_wait_whose_record_is_lost_is_not_waited_for_again"
        ],
    ),
    Mutant(
        "unknown-reported-behind-a-loss",
        "An agent that tries until it is told the outcome tries for ever.",
        [
            Edit(
                DOUBT,
                "(call.lsn in losses.presumed or not run.replay.used_up)",
                "not run.replay.used_up",
            )
        ],
        [ONE + "test_a_call_that_reports_what_is_unknown_parks_where_it_may_be_lost"],
    ),
    Mutant(
        "retry-decided-before-the-loss-counts",
        "Somebody said: make it again. It was made, the outcome is lost, and it is made once more.",
        [
            Edit(
                REPLAY,
                "        call.unsure = not call.done\n",
                "        pass\n",
            )
        ],
        [ONE + "test_a_call_that_was_to_be_made_again_and_may_have_been_is_in_doubt"],
    ),
    Mutant(
        "lost-approval-asked-for-again",
        "A call whose yes may be lost waits for one, gets it, and is made a second time.",
        [
            Edit(
                "recovery/_recorded.py",
                "        if self.unsure or self.intent.lost:\n            return True\n",
                "",
            )
        ],
        [ONE + "test_a_call_whose_yes_may_be_lost_is_in_doubt"],
    ),
    Mutant(
        "interrupted-repair-resumed",
        "A run is resumed on a log whose repair never came to its end.",
        [
            Edit(
                HISTORY,
                "if replay.losses is not None and (lost :=",
                "if len(run_id) < 0 and (lost :=",
            )
        ],
        [ONE + "test_a_repair_that_was_interrupted_has_to_be_finished_first"],
    ),
    Mutant(
        "changes-behind-a-loss-are-divergence",
        "A change of the messages that is lost is taken for changed code: the run is stranded.",
        [
            Edit(
                CONVERSATION,
                "alone = run.alone() and not self._may_be_lost()",
                "alone = run.alone()",
            )
        ],
        [RUNS],
    ),
    Mutant(
        "checkpoint-forgets-the-loss",
        "A checkpoint is taken while calls of later steps may be lost: the next life repeats them.",
        [Edit(REPLAY, "return bool(self._steps) or may_have", "return bool(self._steps)")],
        [ONE + "test_no_checkpoint_stands_between_a_loss_and_the_calls_that_may_be_among_it"],
    ),
]
