"""Seeded bugs in graphs and in the manager of their checkpoints."""

from __future__ import annotations

from tests.mutants._mutant import Edit, Mutant

WALK, STANDING = "recovery/graph/_walk.py", "recovery/graph/_standing.py"
NODE, GRAPH = "recovery/graph/_node.py", "recovery/graph/_graph.py"
FLEXIBLE, EXECUTOR = "recovery/graph/_flexible.py", "recovery/graph/_executor.py"
HOOKS, MANAGER = "recovery/graph/_hooks.py", "recovery/_manager.py"

TESTS = "unit/test_graph.py::"
PLANS = "unit/test_graph_flexible.py::"
KEPT = "unit/test_checkpoint_manager.py::"
SPOILED = "unit/test_graph_damage.py::"

LONG = "unit/test_graph_long.py::"

MUTANTS = [
    Mutant(
        "graph-loops-keep-what-was-written-over",
        "A loop of a million visits keeps what each of them has written, whatever the retention.",
        [Edit(WALK, "        run.messages = [whole]\n", "        pass\n")],
        [LONG + "test_retention_frees_what_a_loop_has_written_over"],
    ),
    Mutant(
        "graph-folded-visits-are-forgotten",
        "Behind the entry that stands for all others, nobody knows which nodes had failed.",
        [Edit(STANDING, 'list(first["failed"]),', "[],")],
        [LONG + "test_loops_whose_entries_were_folded_come_to_the_same_end"],
    ),
    Mutant(
        "graph-folds-again-and-again",
        "In a long chain, all that was written is packed behind each node.",
        [
            Edit(
                WALK,
                "    if count < FOLDED_MIN or count.bit_length() == known.bit_length():\n",
                "    if count < 16:\n",
            )
        ],
        [LONG + "test_the_two_hundredth_node_costs_what_the_thirtieth_has_cost"],
    ),
    Mutant(
        "graph-edges-taken-while-at-work-are-lost",
        "A visit uses up all edges to its node, also those that came while it was at work.",
        [Edit(STANDING, "left[edge] -= 1", "left[edge] = 0")],
        [TESTS + "test_a_node_that_leads_to_one_beside_it_is_not_lost"],
    ),
    Mutant(
        "graph-node-reads-what-others-share",
        "A node that changes what it has read changes it for all, until the process dies.",
        [
            Edit(
                NODE,
                "return deepcopy((self.written if key in self.written else self._known)[key])",
                "return (self.written if key in self.written else self._known)[key]",
            )
        ],
        [TESTS + "test_what_a_node_reads_is_a_copy_the_first_time_and_behind_a_checkpoint"],
    ),
    Mutant(
        "graph-failed-node-hides-that-it-failed-for-ever",
        "A resumed run finds the recorded failure, and gives up without trying again.",
        [Edit(WALK, 'told(first.error)}", calls, stays)', 'told(first.error)}")')],
        [TESTS + "test_a_failed_node_leaves_a_run_that_tries_again_when_it_is_resumed"],
    ),
    Mutant(
        "graph-denied-node-asks-again",
        "Somebody said no, and the executor makes the same call anew until somebody says yes.",
        [
            Edit(
                WALK,
                "ended = Failed(exc, failure.call, is_final(exc))",
                "ended = Failed(exc, failure.call, False)",
            )
        ],
        [TESTS + "test_a_denied_node_is_not_asked_for_again"],
    ),
    Mutant(
        "graph-given-up-visit-is-made-again",
        "A visit that a person has resolved as failed is executed once more.",
        [
            Edit(
                GRAPH,
                "isinstance(error, ToolError) and error.type_name in (RESOLVED_AS_FAILED, *STAYS)",
                "False",
            )
        ],
        [TESTS + "test_a_node_that_is_resolved_as_failed_is_not_made_again"],
    ),
    Mutant(
        "graph-attempts-are-not-told-apart",
        "A later attempt is told that it is the first one.",
        [Edit(WALK, "visit.number, visit.attempt, tuple(", "visit.number, 1, tuple(")],
        [
            TESTS + "test_a_tool_that_failed_is_called_again_by_the_next_attempt",
            TESTS + "test_attempts_are_counted_over_a_crash",
        ],
    ),
    Mutant(
        "graph-changed-edge-is-followed",
        "A run goes along an edge that the graph does not have any more.",
        [Edit(WALK, "return source == START or self.graph.leads(source, target)", "return True")],
        [TESTS + "test_what_does_not_match_is_refused_by_name"],
    ),
    Mutant(
        "graph-accepted-change-is-forgotten",
        "That a branch ends was accepted once, and stops the run again after the next crash.",
        [
            Edit(
                WALK,
                "        run.messages.append(entry)\n\n    async def _targets(",
                "\n    async def _targets(",
            )
        ],
        [TESTS + "test_accepted_the_branch_ends_there"],
    ),
    Mutant(
        "graph-join-runs-at-once",
        "A join runs with the first branch, and again with each other one.",
        [Edit(WALK, '.options.get("join")', '.options.get("no")')],
        [TESTS + "test_a_join_waits_for_longer_branches_and_not_for_ones_not_taken"],
    ),
    Mutant(
        "graph-joins-go-in-the-wrong-order",
        "Of joins that wait for branches not taken, a later one goes first.",
        [Edit(WALK, "    return first or waiting[:1]\n", "    return waiting\n")],
        [TESTS + "test_joins_that_wait_for_one_another_go_in_order"],
    ),
    Mutant(
        "graph-loop-without-a-bound",
        "A loop that never ends is never stopped.",
        [Edit(WALK, "        if number > limit:\n", "        if number > limit and False:\n")],
        [PLANS + "test_limits_leave_a_run_that_goes_on_with_higher_ones"],
    ),
    Mutant(
        "graph-hook-inside-the-run",
        "What a hook of the runtime object calls is recorded as the run's, and missing on replay.",
        [
            Edit(
                HOOKS,
                "    token = current_scope.set(None)\n",
                "    token = current_scope.set(current_scope.get())\n",
            )
        ],
        [TESTS + "test_what_goes_wrong_in_a_hook_is_not_the_runs"],
    ),
    Mutant(
        "graph-stored-without-being-asked",
        "A manager that is not enabled keeps runs all the same.",
        [
            Edit(
                EXECUTOR,
                "checkpoint_manager.config.enabled\n",
                "checkpoint_manager.config is not None\n",
            )
        ],
        [TESTS + "test_without_a_manager_nothing_is_stored"],
    ),
    Mutant(
        "plan-step-is-made-before-what-it-depends-on",
        "Steps are made in the order of the plan, with inputs that are not there yet.",
        [Edit(FLEXIBLE, "if all(_accepted(memory, one) for one in step.depends_on)", "if step")],
        [PLANS + "test_a_plan_is_executed_in_the_order_of_what_its_steps_depend_on"],
    ),
    Mutant(
        "plan-attempts-carry-over",
        "What a former plan tried counts against the new one.",
        [
            Edit(
                FLEXIBLE,
                'if kept and kept["revision"] == memory[REVISION] else 0',
                "if kept else 0",
            )
        ],
        [PLANS + "test_attempts_are_counted_for_each_plan_anew"],
    ),
    Mutant(
        "manager-ids-collide",
        "Two checkpoints behind the same node have the same id: one cannot be restored any more.",
        [Edit(MANAGER, 'f"ckpt_{run_id}_{node_id}_{step}"', 'f"ckpt_{run_id}_{node_id}"')],
        [KEPT + "test_each_save_has_an_id_of_its_own_and_writes_what_changed"],
    ),
    Mutant(
        "manager-goes-on-with-the-finished-node",
        "An executor is told to go on with the node that it had finished.",
        [Edit(MANAGER, 'state["metadata"].get("next_node_id") or state["node"]', 'state["node"]')],
        [KEPT + "test_an_executor_that_knows_three_methods_by_name_runs_unchanged"],
    ),
    Mutant(
        "manager-recovers-though-it-is-off",
        "A run that was to wait for somebody is resumed by itself.",
        [Edit(EXECUTOR, "if manager is None or manager.config.auto_recovery:", "if manager:")],
        [KEPT + "test_automatic_recovery_can_be_off"],
    ),
    Mutant(
        "graph-damaged-checkpoint-hides-the-older-ones",
        "Behind one bad checkpoint no older one is looked at: all is read from the beginning.",
        [
            Edit(
                "eventlog/_reader.py",
                "                            on_damage(item)\n                return\n",
                "                            on_damage(item)\n"
                "                        return\n                return\n",
            )
        ],
        [SPOILED + "test_the_newest_checkpoints_cut_in_half_cost_no_node"],
    ),
    Mutant(
        "graph-checkpoints-are-found-by-the-index-alone",
        "In a segment that has lost its footer nobody looks for checkpoints.",
        [
            Edit(
                "eventlog/_reader.py",
                "            sealed = Sealed.open(self._directory, place)\n"
                "            if sealed is not None:\n"
                "                newest, found",
                "            sealed = Sealed.open(self._directory, place)\n"
                "            if sealed is None:\n"
                "                continue\n"
                "            if sealed is not None:\n"
                "                newest, found",
            )
        ],
        [SPOILED + "test_there_is_no_index_to_lose"],
    ),
    Mutant(
        "graph-lost-end-is-cut-off",
        "Records that were acknowledged and are gone count as a torn tail: their nodes run twice.",
        [
            Edit(
                "recovery/_history.py",
                "    if lost:\n        raise DamagedRunError(run_id, lost)\n    for reason",
                "    for reason",
            )
        ],
        [SPOILED + "test_a_log_that_ends_in_its_newest_checkpoint_is_refused_and_forked_before_it"],
    ),
    Mutant(
        "graph-altered-record-is-obeyed",
        "What a checkpoint restores is not verified: a run whose record was altered skips nodes.",
        [Edit("recovery/_snapshots.py", 'if actual != body["checksum"]:', "if not actual:")],
        [SPOILED + "test_a_run_that_is_altered_and_can_be_read_skips_nothing"],
    ),
    Mutant(
        "graph-batch-cut-short-is-made-again",
        "Of tools that ran side by side none counts before the visit has ended: 11 of 12 twice.",
        [
            Edit(
                "recovery/_replay.py",
                "call.key.scope, call.lsn, lambda outer: outer.done)",
                "call.key.scope, call.lsn, lambda outer: True)",
            )
        ],
        [TESTS + "test_of_a_batch_of_parallel_tools_only_the_one_under_way_is_in_doubt"],
    ),
]
