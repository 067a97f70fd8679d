"""Seeded bugs in what is recorded of Aden Hive."""

from __future__ import annotations

from tests.mutants._mutant import Edit, Mutant

GRAPH = "recovery/integrations/hive/_graph.py"

BOOK, TOOLS = "recovery/integrations/hive/_book.py", "recovery/integrations/hive/_tools.py"
SESSION = "recovery/integrations/hive/_session.py"
CONVERSATION = "recovery/integrations/hive/_conversation.py"

GRAPHS = "unit/test_hive_graph.py::"
LOOP = "unit/test_hive_loop.py::"

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
    Mutant(
        "hive-tool-starts-before-its-intent-is-durable",
        "After a power loss nothing says that a tool had been started.",
        [
            Edit(
                BOOK,
                "            self._open.add(made.lsn)\n        self.commit()\n",
                "            self._open.add(made.lsn)\n",
            )
        ],
        [LOOP + "test_intents_are_durable_before_the_tool_and_results_before_the_loop_has_them"],
    ),
    Mutant(
        "hive-result-is-not-durable",
        "The loop has a result that a power loss takes back.",
        [
            Edit(
                BOOK,
                "            self._settled(made)\n        self.commit()\n",
                "            self._settled(made)\n",
            )
        ],
        [LOOP + "test_intents_are_durable_before_the_tool_and_results_before_the_loop_has_them"],
    ),
    Mutant(
        "hive-results-are-not-put-in",
        "The model is shown an error for what was done, and asks for it again.",
        [Edit(CONVERSATION, "            await self._heal()\n", "")],
        [LOOP + "test_a_batch_killed_in_its_last_tool_has_one_call_in_doubt_and_repeats_none"],
    ),
    Mutant(
        "hive-results-are-put-in-at-the-end",
        "A result that does not follow the message that asks for it is hidden by Hive.",
        [
            Edit(
                CONVERSATION,
                "while at < len(book.parts) and _answers(book.parts[at], asking):",
                "while at < len(book.parts):",
            )
        ],
        [LOOP + "test_what_a_user_said_before_the_tools_ran_does_not_hide_their_results"],
    ),
    Mutant(
        "hive-results-go-to-an-earlier-turn",
        "Where ids are used again, results are put in where the id first stands.",
        [
            Edit(
                CONVERSATION,
                'for part in book.parts if part["role"] == "assistant"}',
                'for part in reversed(book.parts) if part["role"] == "assistant"}',
            )
        ],
        [LOOP + "test_ids_that_a_provider_uses_again_do_not_bring_back_old_results"],
    ),
    Mutant(
        "hive-results-of-former-turns-are-kept",
        "A result that no message asks for any more is served for an id that is used again.",
        [
            Edit(
                BOOK,
                '                self.unseen.pop(part.get("tool_use_id") or "", None)\n',
                "                pass\n",
            )
        ],
        [
            LOOP + "test_the_same_call_with_the_same_id_in_the_next_turn_is_made",
        ],
    ),
    Mutant(
        "hive-call-in-doubt-is-made-again",
        "A tool of which nothing is said is called again after a crash.",
        [
            Edit(
                SESSION,
                'return policy.get(tool, "park") if isinstance(policy, Mapping) else policy',
                'return policy.get(tool, "park") if isinstance(policy, Mapping) else "retry"',
            )
        ],
        [LOOP + "test_a_batch_killed_in_its_last_tool_has_one_call_in_doubt_and_repeats_none"],
    ),
    Mutant(
        "hive-unknown-is-an-outcome",
        "What could not be found out is taken for a result.",
        [Edit(SESSION, "        if open_:  # before", "        if False:  # before")],
        [LOOP + "test_what_cannot_be_found_out_stops_for_a_person_before_anything_is_made_again"],
    ),
    Mutant(
        "hive-attempts-are-not-counted",
        "A call that is made again says that it is the first attempt.",
        [Edit(SESSION, "                call.attempts += 1\n", "")],
        [LOOP + "test_a_call_made_again_has_the_key_that_it_had"],
    ),
    Mutant(
        "hive-early-tools-have-no-place",
        "Results of tools that began while the model spoke are lost, for its message is a partial.",
        [Edit(CONVERSATION, "            await self._promote_partials()\n", "")],
        [LOOP + "test_tools_that_start_while_the_model_speaks_are_not_repeated"],
    ),
    Mutant(
        "hive-checkpoint-forgets-results",
        "A checkpoint comes between a result and the message that has it.",
        [Edit(BOOK, " or self._open or self.left or self.unseen:", ":")],
        [LOOP + "test_a_crash_between_record_and_file_loses_no_message"],
    ),
    Mutant(
        "hive-other-input-is-served",
        "A call with the same id and another input is served the result of the first.",
        [Edit(TOOLS, "known is not None and known.arguments == ((), given)", "known is not None")],
        [LOOP + "test_results_come_back_with_type_and_fields_and_once"],
    ),
    Mutant(
        "hive-cancelled-call-is-forgotten",
        "Nothing says that a call was cancelled, so that it is in doubt for ever.",
        [Edit(TOOLS, "            self._book.cancelled(call)\n", "")],
        [LOOP + "test_a_cancelled_call_is_told_to_be_unknown"],
    ),
    Mutant(
        "hive-altered-message-is-obeyed",
        "A file that was altered counts, and not what is recorded.",
        [Edit(CONVERSATION, "        if found == part:\n", "        if found is not None:\n")],
        [LOOP + "test_a_damaged_conversation_is_put_right_and_no_tool_called_again"],
    ),
    Mutant(
        "hive-lost-meta-clears-the-conversation",
        "Without meta.json there is no conversation, and Hive begins anew.",
        [
            Edit(
                CONVERSATION,
                '        found: dict[str, Any] | None = deepcopy(self._book.state.get("meta"))',
                "        found: dict[str, Any] | None = await self._inner.read_meta()",
            ),
            Edit(
                CONVERSATION,
                "            await inner.write_meta(deepcopy(known))\n",
                "            pass\n",
            ),
        ],
        [LOOP + "test_a_damaged_conversation_is_put_right_and_no_tool_called_again"],
    ),
    Mutant(
        "hive-damage-is-taken-for-a-beginning",
        "A conversation that is damaged and not recorded is taken for none, and Hive deletes it.",
        [Edit(CONVERSATION, "and (parts or cursor):", "and False:")],
        [LOOP + "test_a_damaged_conversation_that_is_not_recorded_is_refused_and_kept"],
    ),
    Mutant(
        "hive-deleted-messages-come-back",
        "A crash between record and files brings back what was compacted.",
        [
            Edit(
                CONVERSATION,
                "            await inner.delete_parts_before(first)  # a crash came",
                "            pass  # a crash came",
            ),
            Edit(CONVERSATION, "            news = [seq for seq in news if seq >= first]\n", ""),
        ],
        [LOOP + "test_compaction_is_followed_also_when_a_crash_comes_before_the_files"],
    ),
    Mutant(
        "hive-conversations-take-results-from-each-other",
        "A turn of another conversation in the same store makes results be forgotten.",
        [
            Edit(
                BOOK,
                "known = {one for _, ids in self._turns.values() for one in ids}",
                "known = asked",
            ),
            Edit(BOOK, "or not (key in over or call.last_lsn < before)", "or False"),
        ],
        [LOOP + "test_conversations_that_share_a_store_do_not_take_results_from_each_other"],
    ),
    Mutant(
        "hive-result-goes-to-another-call-of-its-id",
        "What is put in is looked up by its id alone.",
        [
            Edit(
                CONVERSATION,
                "and one in book.unseen and _is_same(how, book.unseen[one])",
                "and one in book.unseen",
            )
        ],
        [LOOP + "test_a_result_goes_to_no_other_call_of_its_id"],
    ),
    Mutant(
        "hive-served-result-is-of-another-type",
        "What an AgentLoop gave comes from the record as a NodeResult, without what that lacks.",
        [
            Edit(
                GRAPH,
                "return hint if isinstance(hint, type) else type_beside",
                "return type_beside",
            )
        ],
        [GRAPHS + "test_a_node_gives_the_type_that_it_says_also_from_the_record"],
    ),
    Mutant(
        "hive-late-result-is-a-second-answer",
        "A result that came when Hive waited no longer is put in beside what it said of that.",
        [Edit(CONVERSATION, "if one not in told\n", "if True\n")],
        [LOOP + "test_a_result_that_comes_when_hive_waits_no_longer_is_no_second_answer"],
    ),
]
