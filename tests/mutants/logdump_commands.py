"""Seeded bugs in what logdump's commands count, compare and show."""

from __future__ import annotations

from tests.mutants._mutant import Edit, Mutant

ACCOUNT, SPENT, GROWTH = "recovery/_account.py", "recovery/_spent.py", "recovery/_growth.py"
DIFF = "tools/logdump/_diff.py"

COUNTING, COMPARING = "unit/test_recovery_account.py::", "unit/test_logdump_diff.py::"
RECOUNT = COUNTING + "test_totals_are_those_of_a_recount"

MUTANTS = [
    Mutant(
        "stats-take-waiting-for-work",
        "A call that waits for somebody's yes counts as time in tools.",
        [Edit(ACCOUNT, '"waits" if flight.waits or asks else "works"', '"works"')],
        [RECOUNT],
    ),
    Mutant(
        "stats-time-calls-over-the-death-of-a-process",
        "A call that was made again after a night without a process took a night.",
        [
            Edit(
                ACCOUNT,
                "flight.since_ns, flight.life = time_ns, self._life",
                "flight.life = self._life",
            )
        ],
        [RECOUNT],
    ),
    Mutant(
        "stats-count-the-same-time-twice",
        "What a call waits for inside another one is no time of its own.",
        [Edit(SPENT, "self._count(outer.mode, -1 if outer.busy else +1)", "pass")],
        [COUNTING + "test_a_call_inside_another_one_is_not_at_work_beside_it"],
    ),
    Mutant(
        "stats-praise-recoveries-for-all-outcomes",
        "What a checkpoint stands for is said to have been served from behind it.",
        [Edit(ACCOUNT, "self.used.since(point[1])", "self.used")],
        [COUNTING + "test_recoveries_are_what_the_log_says_of_them"],
    ),
    Mutant(
        "stats-keep-every-duration",
        "The memory of stats grows with the log.",
        [Edit(GROWTH, "if len(self._kept) == KEPT_MAX:", "if False:")],
        [COUNTING + "test_the_median_is_exact_up_to_a_bound_and_near_behind_it"],
    ),
    Mutant(
        "diff-shows-what-is-to-be-hidden",
        "A value under a key that is to be hidden is shown where it differs.",
        [Edit(DIFF, "hide = any(map(redaction.hides, names))", "hide = False")],
        [COMPARING + "test_secrets_are_hidden"],
    ),
    Mutant(
        "diff-goes-where-a-log-sends-it",
        "A forged fork makes diff open any directory.",
        [Edit(DIFF, "        check_run_id(origin.run_id)  #", "        pass  #")],
        [COMPARING + "test_where_a_fork_says_it_is_from_leads_nowhere_else"],
    ),
]
