"""Seeded bugs in forks, lists of checkpoints, and comparisons."""

from __future__ import annotations

from tests.mutants._mutant import Edit, Mutant

FORK, DRAFT, LINEAGE = "recovery/_fork.py", "recovery/_draft.py", "recovery/_lineage.py"
HISTORY, REPLAY, STORED = "recovery/_history.py", "recovery/_replay.py", "recovery/_stored.py"
COMPARE, TOLD, EVENTS = "recovery/_comparing.py", "recovery/_told.py", "recovery/_events.py"

TESTS = "unit/test_recovery_fork.py::"
COMPARING = "unit/test_recovery_compare.py::"

MUTANTS = [
    Mutant(
        "fork-forgets-idempotency-keys",
        "A call in doubt gets a key of its own in the fork: retried, it is done twice outside.",
        [
            Edit(
                DRAFT,
                'body["key"] = event.idempotency_key(self._uid)',
                "pass",
            )
        ],
        [TESTS + "test_a_call_in_doubt_is_in_doubt_in_the_fork_under_its_key"],
    ),
    Mutant(
        "fork-of-a-fork-computes-keys-anew",
        "The second fork gives a copied call a third key, under which nothing has happened.",
        [
            Edit(
                DRAFT,
                "event.idempotency_key(self._uid)",
                "idempotency_key(self._uid, event.identity)",
            ),
            Edit(
                DRAFT,
                "from recovery._keys import UNDO_PREFIX,",
                "from recovery._keys import idempotency_key, UNDO_PREFIX,",
            ),
        ],
        [TESTS + "test_a_call_in_doubt_is_in_doubt_in_the_fork_under_its_key"],
    ),
    Mutant(
        "fork-does-not-use-the-keys-it-has",
        "The key is recorded, and the tool is given another one.",
        [Edit(EVENTS, "return self.key or idempotency_key(", "return idempotency_key(")],
        [TESTS + "test_a_call_in_doubt_is_in_doubt_in_the_fork_under_its_key"],
    ),
    Mutant(
        "fork-keeps-scopes",
        "A call inside a call names an LSN of the other log: another call there, and made again.",
        [
            Edit(
                DRAFT,
                "return call_scope(self.at[outer]) if outer in self.at else None",
                "return value",
            )
        ],
        [
            TESTS + "test_calls_inside_calls_are_served_and_counted_on",
            TESTS + "test_a_call_inside_a_call_in_doubt_is_not_made_again",
        ],
    ),
    Mutant(
        "fork-keeps-references",
        "A message that is an outcome refers to whatever has that LSN in the fork.",
        [Edit(DRAFT, "return unpack(pack_stand_in(found.moved(self.at)))", "return item")],
        [TESTS + "test_a_fork_executes_what_comes_after_the_step_and_nothing_else"],
    ),
    Mutant(
        "fork-refers-to-the-other-log",
        "A message from before the checkpoint is copied as a reference, to a log that may be gone.",
        [Edit(DRAFT, "return unpack(self._packed_of(found))", "return item")],
        [TESTS + "test_a_message_from_before_the_checkpoint_is_copied_by_value"],
    ),
    Mutant(
        "fork-records-the-time-of-forking",
        "A reconcile hook asks since when a call may have happened, and gets a time after it.",
        [
            Edit(
                FORK,
                "log.append(wanted.kind, wanted.packed, time_ns=wanted.time_ns)",
                "log.append(wanted.kind, wanted.packed)",
            )
        ],
        [TESTS + "test_a_call_in_doubt_is_in_doubt_in_the_fork_under_its_key"],
    ),
    Mutant(
        "fork-takes-a-step-too-many",
        "The fork holds the records of the step behind: other code cannot go on from there.",
        [Edit(FORK, "if step > part.step), default", "if step > part.step + 1), default")],
        [TESTS + "test_a_fork_executes_what_comes_after_the_step_and_nothing_else"],
    ),
    Mutant(
        "fork-cuts-outcomes-off",
        "A call that was under way at the end of the step is in doubt, though it has an outcome.",
        [Edit(FORK, "if record.lsn >= end and taken.isdisjoint(about):", "if record.lsn >= end:")],
        [TESTS + "test_how_a_call_under_way_at_the_end_of_the_step_has_ended_goes_along"],
    ),
    Mutant(
        "fork-copies-what-was-dropped",
        "What the code may do without since a divergence was accepted is waited for in the fork.",
        [
            Edit(
                FORK,
                "        if dropped:\n            draft",
                "        if not until_:\n            draft",
            ),
            Edit(
                FORK,
                "        dropped = sorted(mover",
                "        until_ = 1\n        dropped = sorted(mover",
            ),
        ],
        ["unit/test_recovery_accept.py::test_a_fork_knows_what_was_dropped"],
    ),
    Mutant(
        "fork-forgets-what-was-dropped",
        "Calls that were dropped are not in the fork: code that comes back to them repeats them.",
        [
            Edit(
                FORK,
                "r.lsn in dropped and isinstance(event, RECORDED_ANEW)",
                "r.lsn in dropped",
            )
        ],
        ["unit/test_recovery_accept.py::test_a_fork_knows_what_was_dropped"],
    ),
    Mutant(
        "fork-of-a-fork-begins-in-the-middle",
        "A fork knows nothing before its first checkpoint, and is forked there all the same.",
        [Edit(FORK, " or (self.above and self.above.base)", "")],
        [TESTS + "test_a_fork_does_not_know_what_was_before_it"],
    ),
    Mutant(
        "unfinished-fork-is-run",
        "A crash inside fork() leaves a run without its last records: it executes them again.",
        [Edit(LINEAGE, "if restored >= self.base and last >= self.until:", "if True:")],
        [
            TESTS + "test_a_fork_that_crashes_is_none_or_unfinished_or_whole",
            TESTS + "test_a_fork_without_its_first_checkpoint_is_not_run_from_the_beginning",
        ],
    ),
    Mutant(
        "fork-without-its-checkpoint-is-run",
        "Its first checkpoint is damaged, so it begins with step 1, and does all of it again.",
        [
            Edit(
                LINEAGE,
                "if restored >= self.base and last >= self.until:",
                "if last >= self.until or broken:",
            )
        ],
        [TESTS + "test_a_fork_without_its_first_checkpoint_is_not_run_from_the_beginning"],
    ),
    Mutant(
        "unfinished-fork-is-taken-for-a-run",
        "A fork that a crash cut short can never be finished.",
        [Edit(FORK, "or last >= link.until):", "or last >= 1):")],
        [TESTS + "test_a_fork_that_crashes_is_none_or_unfinished_or_whole"],
    ),
    Mutant(
        "fork-is-written-twice",
        "What a crash left of a fork stays in front of all of it: calls are there twice.",
        [Edit(FORK, "for wanted in draft.records[len(there) :]:", "for wanted in draft.records:")],
        [TESTS + "test_a_fork_that_crashes_is_none_or_unfinished_or_whole"],
    ),
    Mutant(
        "fork-continues-another-fork",
        "What a crash left of one fork is completed with the records of another.",
        [
            Edit(
                FORK,
                "if (record.kind, record.packed) != (wanted.kind, wanted.packed):",
                "if record.kind != wanted.kind:",
            )
        ],
        [TESTS + "test_a_fork_that_crashes_is_none_or_unfinished_or_whole"],
    ),
    Mutant(
        "fork-looks-past-what-was-seen",
        "The run has gone on since the fork was begun, and the rest is that of a later moment.",
        [Edit(FORK, "before.seen if before else 1 << 63", "1 << 63")],
        [TESTS + "test_an_unfinished_fork_of_a_run_that_went_on_is_finished_as_it_was_begun"],
    ),
    Mutant(
        "fork-ignores-lost-records",
        "A lost record may be a call that was made: the fork makes it again.",
        [Edit(FORK, "        if missed:\n", "        if missed and False:\n")],
        [TESTS + "test_a_damaged_run_is_forked_where_it_is_sound"],
    ),
    Mutant(
        "state-changed-beside-work",
        "State is changed at a step whose task is still at work: the fork loses the task.",
        [
            Edit(
                FORK,
                "if under_way or outlived or reaches_behind(later, part.step):",
                "if under_way:",
            )
        ],
        [TESTS + "test_how_a_call_under_way_at_the_end_of_the_step_has_ended_goes_along"],
    ),
    Mutant(
        "changed-state-loses-messages",
        "state= at a step without a checkpoint gives the conversation of an earlier step.",
        [
            Edit(
                FORK,
                "            if isinstance(event, MessagesChanged) and entered:\n",
                "            if isinstance(event, MessagesChanged) and not entered:\n",
            )
        ],
        [TESTS + "test_the_conversation_of_a_step_without_a_checkpoint_is_what_was_recorded"],
    ),
    Mutant(
        "new-task-misses-old-calls",
        "With another task, the calls that only the old one made stop every fork.",
        [
            Edit(
                REPLAY,
                "return call.lsn in self._dropped or (call.done and call.lsn <= self.optional)",
                "return call.lsn in self._dropped",
            )
        ],
        [TESTS + "test_a_new_task_repeats_no_call_that_is_the_same"],
    ),
    Mutant(
        "new-task-is-not-inherited",
        "A fork of a fork with another task misses the calls of the task before.",
        [Edit(FORK, "missable = self.above.optional if self.above else 0", "missable = 0")],
        [TESTS + "test_a_new_task_repeats_no_call_that_is_the_same"],
    ),
    Mutant(
        "new-task-says-what-the-old-one-said",
        "What the old task appended before the first step is demanded of the new one.",
        [Edit(FORK, " or (new_task and isinstance(event, MessagesChanged))", "")],
        [TESTS + "test_a_new_task_repeats_no_call_that_is_the_same"],
    ),
    Mutant(
        "fork-undoes-what-another-run-did",
        "run.undo() in a fork takes back what the other run still counts on, and may undo itself.",
        [
            Edit(
                "recovery/_compensation.py",
                'is_ours = one.state != "happened" or one.outcome_lsn > self.forked',
                "is_ours = True",
            )
        ],
        [TESTS + "test_a_fork_undoes_what_it_has_done_itself"],
    ),
    Mutant(
        "fork-demands-steps-of-the-other-run",
        "run.undo(since=) stops a fork because a step of the other run is not in its log.",
        [
            Edit(
                "recovery/_compensation.py",
                "self.base if self.first_lsn <= self.base else 0",
                "0",
            )
        ],
        [TESTS + "test_a_fork_undoes_since_a_step_that_its_own_log_does_not_have"],
    ),
    Mutant(
        "fork-undoes-half-of-what-it-did",
        "A fork of which records were removed is undone as if all were there.",
        [
            Edit(
                "recovery/_compensation.py",
                "self.base if self.first_lsn <= self.base else 0",
                "self.base",
            )
        ],
        [TESTS + "test_a_fork_without_the_beginning_of_its_log_is_not_undone_from_before_that"],
    ),
    Mutant(
        "fork-shares-a-child",
        "A child at work belongs to two runs.",
        [Edit(FORK, "if call.child or call.tool == UNDO_CALL:", "if call.tool == UNDO_CALL:")],
        [TESTS + "test_a_child_run_is_not_shared_with_a_fork"],
    ),
    Mutant(
        "checkpoint-listed-as-sound",
        "A checkpoint whose values are damaged is listed as one to go back to.",
        [Edit(STORED, "    if not missing:\n", "    if True:\n")],
        [TESTS + "test_a_checkpoint_is_listed_as_sound_if_and_only_if_it_can_be_restored"],
    ),
    Mutant(
        "comparison-by-position",
        "Concurrent calls that came in another order are reported as changed.",
        [Edit(COMPARE, "for alike in (_identity, _id, _tool):", "for alike in (_tool,):")],
        [COMPARING + "test_the_order_of_concurrent_calls_is_no_difference"],
    ),
    Mutant(
        "comparison-looks-at-no-outcome",
        "Two runs whose model answered otherwise are said to be alike.",
        [
            Edit(
                COMPARE,
                "for path, here, there in self._outcomes(one.end, other.end):",
                "for path, here, there in ():",
            )
        ],
        [COMPARING + "test_outcomes_of_calls_inside_calls_are_compared"],
    ),
    Mutant(
        "comparison-of-a-fork-from-the-beginning",
        "The steps that a fork began with, and does not hold, are said to be missing.",
        [
            Edit(
                COMPARE,
                "for number in range(since + 1, last + 1):",
                "for number in range(1, last + 1):",
            )
        ],
        [COMPARING + "test_a_fork_with_the_same_code_is_like_its_parent"],
    ),
    Mutant(
        "compare-forgets-what-was-dropped",
        "Calls that were dropped are left out, also where the code has made them again.",
        [
            Edit(
                TOLD,
                "if lsn < start or (lsn in telling.dropped and isinstance(event, RECORDED_ANEW)):",
                "if lsn < start or lsn in telling.dropped:",
            )
        ],
        [
            "unit/test_recovery_compare.py::"
            "test_a_call_that_was_dropped_and_is_made_again_is_no_difference"
        ],
    ),
    Mutant(
        "compare-pairs-what-was-dropped-first",
        "A dropped call is compared with one that counts, whose true counterpart is left alone.",
        [Edit(COMPARE, "in sorted(a, key=_is_dropped)", "in a")],
        ["unit/test_recovery_compare.py::test_a_dropped_call_stands_in_for_none_that_counts"],
    ),
    Mutant(
        "comparison-needs-the-types",
        "Who is called at night has not the agent's code at hand, and cannot compare its runs.",
        [Edit(COMPARE, "except (UnreadableValueError, ValueError):", "except ValueError:")],
        [COMPARING + "test_runs_are_compared_without_the_types_in_them"],
    ),
    Mutant(
        "comparison-keeps-values",
        "Comparing two runs takes as much memory as their logs.",
        [
            Edit(TOLD, "RECENT_SIZE_MAX = 8 << 20", "RECENT_SIZE_MAX = 8 << 40"),
            Edit(
                TOLD, "    told.damage = list(", "    told.kept = telling\n    told.damage = list("
            ),
            Edit(
                TOLD,
                "    started_lsn: int = 0\n",
                "    started_lsn: int = 0\n    kept: object = 0\n",
            ),
        ],
        [COMPARING + "test_the_values_of_a_run_are_not_kept"],
    ),
]
