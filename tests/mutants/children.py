"""Seeded bugs in runs that start runs."""

from __future__ import annotations

from tests.mutants._mutant import Edit, Mutant

CHILDREN, FAMILY = "recovery/_children.py", "recovery/_family.py"
LETTING_GO, OUTSIDE = "recovery/_letting_go.py", "recovery/_outside.py"

TESTS = "unit/test_recovery_children.py::"
SWEEPS = "model/test_sweeps.py::test_a_program_dies_at_calls_of_the_disk"

MUTANTS = [
    Mutant(
        "child-started-at-each-attempt",
        "A child's run id depends on the attempt: after a crash another child does it all again.",
        [
            Edit(
                CHILDREN,
                "return child_run_id(self._run.run_id, call.args[0], call.idempotency_key)",
                'return child_run_id(self._run.run_id, "x", f"{call.attempt:016}")',
            )
        ],
        [TESTS + "test_a_child_that_a_crash_cut_short_is_resumed_and_not_started_again"],
    ),
    Mutant(
        "child-started-unrecorded",
        "Nothing says that a child has a log: when that is gone, the child is started over.",
        [
            Edit(
                CHILDREN,
                "self.started = self.of.emit(ChildStarted(self.call.lsn, self.run_id))",
                "self.started = 1",
            )
        ],
        [TESTS + "test_a_child_whose_log_is_gone_is_not_started_again"],
    ),
    Mutant(
        "child-recorded-before-it-is-durable",
        "The parent says that the child has a log before that is so: a power loss strands both.",
        [
            Edit(
                CHILDREN,
                "        if not self.started:\n            log.commit()\n",
                "        if not self.started:\n",
            )
        ],
        [SWEEPS],
    ),
    Mutant(
        "child-begins-before-its-parent-durably-knows",
        "The record that the child has a log is not flushed before the child does something.",
        [Edit(CHILDREN, "            self.of.commit()\n", "            pass\n")],
        [TESTS + "test_before_a_child_does_anything_its_parent_durably_knows_of_it"],
    ),
    Mutant(
        "strangers-log-taken-for-the-childs",
        "Whatever run stands under the child's id is resumed as the child.",
        [Edit(CHILDREN, "        if parent != self.parent:\n", "        if False:\n")],
        [TESTS + "test_another_run_under_the_id_of_a_child_is_left_alone"],
    ),
    Mutant(
        "parked-child-stops-the-others",
        "The run stops as soon as one child is parked: the others are cut short.",
        [Edit(CHILDREN, "        yield from self._others(run)\n", "")],
        [TESTS + "test_a_parked_child_parks_its_parent_when_all_others_have_ended"],
    ),
    Mutant(
        "any-error-of-a-child-is-an-outcome",
        "A child that could go on later is recorded as failed for good.",
        [
            Edit(
                CHILDREN,
                "if isinstance(exc, _ENDED) and exc.run_id == child:",
                "if isinstance(exc, Exception):",
            )
        ],
        [TESTS + "test_a_childs_own_error_parks_the_parent_and_is_no_outcome"],
    ),
    Mutant(
        "settled-child-does-not-revive-its-parent",
        "A run that a child's failure ended stays ended, though somebody has settled that.",
        [
            Edit(
                CHILDREN,
                "    if not child or _is_failed(store, child):\n        return history\n",
                "    return history\n",
            )
        ],
        [TESTS + "test_settling_the_failed_call_inside_a_child_lets_both_go_on"],
    ),
    Mutant(
        "retry-from-above-counts-for-ever",
        "One decision to retry repeats the child's failed call at each resumption.",
        [
            Edit(
                CHILDREN,
                "if retries.newest == (who, why):",
                "if False:",
            )
        ],
        [TESTS + "test_a_retry_from_above_that_a_crash_hides_still_counts_once"],
    ),
    Mutant(
        "children-without-number",
        "All children are at work at once, and the process runs out of file descriptors.",
        [Edit(CHILDREN, "            if self._free:\n", "            if True:\n")],
        [TESTS + "test_no_more_children_are_at_work_than_are_allowed_at_any_depth"],
    ),
    Mutant(
        "given-up-child-can-be-resumed",
        "A child that the agent no longer awaits is left open: whoever runs it lets it go on.",
        [Edit(LETTING_GO, "            run.children.cancelled(call)\n", "            pass\n")],
        [TESTS + "test_a_child_that_nobody_awaits_ends_with_its_parent_for_good"],
    ),
    Mutant(
        "child-ended-before-it-is-recorded-why",
        "The child that the agent gave up ends first: after a crash the agent sees a cancelled "
        "child where it saw a time-out.",
        [
            Edit(LETTING_GO, "            run.children.cancelled(call)\n", "            pass\n"),
            Edit(
                LETTING_GO,
                "        went_on = one not in found",
                "        run.children.cancelled(call)\n        went_on = one not in found",
            ),
        ],
        [SWEEPS],
    ),
    Mutant(
        "children-survive-a-cancelled-run",
        "Cancelling a run leaves its children open.",
        [Edit(OUTSIDE, "            cancel_children(store, log, run_id, who)\n", "")],
        [TESTS + "test_whoever_cancels_a_parked_run_cancels_its_children_and_theirs"],
    ),
    Mutant(
        "child-id-without-the-parents",
        "The end of a long run id is cut off, and with it what tells children apart.",
        [
            Edit(
                FAMILY,
                "return parent[: RUN_ID_SIZE_MAX - len(tail)] + tail",
                "return (parent + tail)[:RUN_ID_SIZE_MAX]",
            )
        ],
        [TESTS + "test_run_ids_of_childrens_children_are_valid_however_deep"],
    ),
]
