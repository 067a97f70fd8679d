"""Seeded bugs in retention inside a run: generations, what they carry, and what is cut."""

from __future__ import annotations

from tests.mutants._mutant import Edit, Mutant

PRUNING, WHOLE = "recovery/_pruning.py", "recovery/_whole.py"
SNAPSHOTS, HISTORY, PARTS = "recovery/_snapshots.py", "recovery/_history.py", "recovery/_parts.py"
CORE, LINEAGE, TOLD = "recovery/_core.py", "recovery/_lineage.py", "recovery/_told.py"
CHECKPOINT, FAMILY, RELATIVES = (
    "recovery/_checkpoint.py", "recovery/_family.py", "recovery/_relatives.py",
)  # fmt: skip

UNIT = "unit/test_recovery_pruning.py::"
STANDS_IN = "model/test_sweeps.py::test_an_earlier_checkpoint_stands_in_for_one_that_is_damaged"

MUTANTS = [
    Mutant(
        "lost-prologue-counts-as-there",
        "A record of the code before the first step that a repair has marked as lost is carried as "
        "if it were one: no recovery takes the checkpoint, and what it could begin with is gone.",
        [
            Edit(
                SNAPSHOTS,
                " or any(one.kind == RecordsLost.kind for one in found.values()):\n",
                ":\n",
            )
        ],
        [UNIT + "test_a_repaired_run_that_lost_a_message_of_its_beginning_stays_whole"],
    ),
    Mutant(
        "prologue-not-carried",
        "What the code before the first step recorded goes, the run's first record with it.",
        [Edit(WHOLE, '                    portions.add(lsn)\n', "                    pass\n")],
        [UNIT + "test_a_pruned_run_goes_on_where_it_was"],
    ),
    Mutant(
        "outcomes-used-after-they-went",
        "A message that equals an outcome of before the generation is recorded as a reference.",
        [Edit(CORE, "        self.conversation.forget_before(self.pruning.first)\n", "")],
        [UNIT + "test_a_message_that_equals_an_outcome_that_is_gone_is_recorded_whole"],
    ),
    Mutant(
        "served-outcomes-used-after-they-went",
        "After a recovery messages refer to outcomes that only a portion has.",
        [Edit(PARTS, "or lsn < self._first:", "or False:")],
        [UNIT + "test_a_message_that_equals_an_outcome_that_is_gone_is_recorded_whole"],
    ),
    Mutant(
        "one-generation-is-enough",
        "The checkpoints that are kept have values in common: one damage is the end of the run.",
        [Edit(PRUNING, "else cls(keep or KEEP, 2)", "else cls(keep or KEEP, 1)")],
        [STANDS_IN],
    ),
    Mutant(
        "checkpoints-not-read-back",
        "What is to stay is not verified: the last sound checkpoint goes.",
        [Edit(PRUNING, "            if is_last or is_new:\n", "            if False:\n")],
        [UNIT + "test_nothing_goes_while_the_checkpoint_that_is_to_stay_is_not_sound"],
    ),
    Mutant(
        "retention-restores-every-checkpoint",
        "To find what may go, a process restores each of a thousand checkpoints, for minutes.",
        [Edit(PRUNING, "            if is_last or is_new:\n", "            if True:\n")],
        [UNIT + "test_to_find_what_may_go_takes_one_restore_for_each_generation"],
    ),
    Mutant(
        "outlived-checkpoints-count",
        "A checkpoint that a recovery passes over, for a task has outlived it, is all that stays.",
        [Edit(PRUNING, '            if body["step"] >= lowest:\n', "            if False:\n")],
        [UNIT + "test_a_checkpoint_that_a_task_has_outlived_does_not_count"],
    ),
    Mutant(
        "late-tasks-not-refused",
        "A thread makes a call in a step that no recovery could bring back, and is executed.",
        [Edit(CORE, "        self.attempt(self.pruning.check, event)\n", "")],
        [UNIT + "test_a_task_that_no_recovery_could_bring_back_is_refused"],
    ),
    Mutant(
        "begun-anew-when-the-beginning-is-gone",
        "With no sound checkpoint left a pruned run begins anew, and executes everything again.",
        [Edit(HISTORY, "    if restored is None and log.oldest_lsn > 1:\n", "    if False:\n")],
        [UNIT + "test_a_run_whose_checkpoints_are_all_lost_is_damaged_and_not_begun_anew"],
    ),
    Mutant(
        "copies-that-do-not-pay",
        "A conversation of which nothing goes is copied again and again.",
        [Edit(PRUNING, "GAIN = 2 ", "GAIN = 0 ")],
        [UNIT + "test_a_conversation_of_which_nothing_goes_is_not_copied"],
    ),
    Mutant(
        "messages-named-again",
        "The first checkpoint of a generation is no base of the later ones.",
        [Edit(SNAPSHOTS, "INDEX_WHOLE = 1 << 40", "INDEX_WHOLE = 1")],
        [UNIT + "test_a_generation_names_its_messages_once"],
    ),
    Mutant(
        "same-message-carried-again",
        "A message that is there many times is written as often.",
        [Edit(WHOLE, "        if found not in seen:", "        if True:")],
        [UNIT + "test_a_message_that_is_there_many_times_is_carried_once"],
    ),
    Mutant(
        "retyped-messages-carried-otherwise",
        "A message whose type has changed is carried as it is packed now: its digest is another.",
        [Edit(WHOLE, "    if digest(packed) == messages.message_digests[i]:\n",
              "    if True:\n")],
        [UNIT + "test_a_message_whose_type_has_changed_is_carried_as_it_was"],
    ),
    Mutant(
        "never-cut",
        "Generations are written, and nothing is removed.",
        [Edit(PRUNING, "                self._due = True\n", "")],
        [UNIT + "test_a_run_takes_no_more_room_the_longer_it_goes"],
    ),
    Mutant(
        "tool-results-cut-short",
        "The tool results of a checkpoint are those that are left, and nothing says so.",
        [Edit(CHECKPOINT, "if reader.oldest_lsn > 1:", "if False:")],
        [UNIT + "test_what_is_gone_is_refused_by_name"],
    ),
    Mutant(
        "leftovers-taken-for-damage",
        "Checkpoints whose segment is still there, and what they need is not, count as damaged.",
        [Edit(CHECKPOINT, "if not is_left_over(snapshot, reader.oldest_lsn):", "if True:")],
        [UNIT + "test_what_is_left_of_other_checkpoints_is_not_taken_for_damage"],
    ),
    Mutant(
        "link-lost-with-the-beginning",
        "Of a pruned run nothing says which run it is, or was forked from.",
        [Edit(LINEAGE, "        return _started_in_checkpoint(log, read)\n", "        pass\n")],
        [UNIT + "test_children_of_a_pruned_run_are_known_by_their_own_logs"],
    ),
    Mutant(
        "early-children-forgotten",
        "Removing a pruned run leaves the children that it had started before.",
        [Edit(RELATIVES, "    if log.oldest_lsn == 1:\n", "    if True:\n")],
        [UNIT + "test_children_of_a_pruned_run_are_known_by_their_own_logs"],
    ),
    Mutant(
        "retries-from-above-not-carried",
        "A pruned child repeats its failed call once more for a decision that was carried out.",
        [Edit(FAMILY, "        return list(self.newest) if self.newest[0] else None\n",
              "        return None\n")],
        [UNIT + "test_a_retry_from_above_counts_once_in_a_pruned_child"],
    ),
    Mutant(
        "compared-from-the-cut",
        "A pruned run is compared from the middle of a step on, without its messages.",
        [Edit(TOLD, "    pruned = told.log.oldest_lsn > 1\n", "    pruned = False\n")],
        [UNIT + "test_two_runs_are_compared_from_where_both_are_told"],
    ),
]  # fmt: skip
