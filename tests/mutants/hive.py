"""Seeded bugs in what is recorded of Aden Hive."""

from __future__ import annotations

from tests.mutants._mutant import Edit, Mutant

GRAPH = "recovery/integrations/hive/_graph.py"

GRAPHS = "unit/test_hive_graph.py::"

MUTANTS = [
    Mutant(
        "hive-node-writes-are-not-served",
        "What a node wrote to the shared memory itself is missing when its visit is served.",
        [Edit(GRAPH, 'for key, value in found["written"].items():', "for key, value in ():")],
        [GRAPHS + "test_no_node_of_a_killed_chain_is_executed_again"],
    ),
    Mutant(
        "hive-visits-are-not-told-apart",
        "Each visit of a node is served what came of the first one.",
        [Edit(GRAPH, "        self.count += 1\n", "        self.count = 1\n")],
        [GRAPHS + "test_retries_and_loops_are_served_by_their_visit"],
    ),
    Mutant(
        "hive-failed-graph-stays-failed",
        "The failure that ended a graph is served for ever, so that the node is not tried again.",
        [Edit(GRAPH, "while not (executed or _succeeded(found)):", "while False:")],
        [GRAPHS + "test_a_graph_that_failed_is_resumed_at_the_node_that_failed"],
    ),
    Mutant(
        "hive-what-replaced-a-failure-is-forgotten",
        "The next replay is served the failure, where the last process had made the visit again.",
        [
            Edit(
                GRAPH,
                "if not (self.run.caught_up() or self._is_recorded(call_id)):",
                "if not self.run.caught_up():",
            )
        ],
        [GRAPHS + "test_what_was_made_in_place_of_a_failure_is_so_on_every_replay"],
    ),
    Mutant(
        "hive-given-up-visit-is-tried-again",
        "Somebody resolved a visit as failed, and the executor makes it once more.",
        [Edit(GRAPH, "            if is_final(exc):", "            if False:")],
        [GRAPHS + "test_a_visit_resolved_as_failed_is_not_tried_again_by_the_executor"],
    ),
    Mutant(
        "hive-unrecordable-output-is-tried-again",
        "A node that gave what cannot be recorded has failed, for the executor: it tries again.",
        [Edit(GRAPH, "            self.run.stop(exc)\n", "            return exc, executed\n")],
        [GRAPHS + "test_an_output_that_cannot_be_recorded_stops_the_run_and_is_not_made_again"],
    ),
    Mutant(
        "hive-edges-ask-the-model-again",
        "What a model said about an edge is not recorded: asked again, it says something else.",
        [
            Edit(
                GRAPH,
                'return self._answer(await self._run.perform_async(spec, given, ""))',
                "return self._answer(await function())",
            )
        ],
        [GRAPHS + "test_what_the_model_said_about_an_edge_is_not_asked_again"],
    ),
    Mutant(
        "hive-empty-registry-is-nothing",
        "An executor takes a registry of its own for an empty one, and nothing is recorded.",
        [
            Edit(
                GRAPH, "return True  # else an executor", "return len(self) > 0  # else an executor"
            )
        ],
        [GRAPHS + "test_nodes_registered_later_are_recorded_and_are_what_they_were"],
    ),
]
