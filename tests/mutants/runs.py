"""Seeded bugs in runs: steps, messages, state, checkpoints, history, values."""

from __future__ import annotations

from tests.mutants._mutant import Edit, Mutant

CONVERSATION = "recovery/_conversation.py"
CORE, AGENT, HISTORY = "recovery/_core.py", "recovery/_agent.py", "recovery/_history.py"
LOOP = "recovery/_loop.py"
SNAPSHOTS, MESSAGES, CHECKPOINT = (
    "recovery/_snapshots.py", "recovery/_messages.py", "recovery/_checkpoint.py",
)  # fmt: skip
PARTS, STATE = "recovery/_parts.py", "recovery/_state.py"
STORED, DRAFT = "recovery/_stored.py", "recovery/_draft.py"
VALUES, ERRORS = "recovery/_values.py", "recovery/_errors.py"

AGENTS = "unit/test_recovery_agent.py::"
STORE = "unit/test_recovery_checkpoint_store.py::"
SNAPSHOT_TESTS = "unit/test_recovery_snapshots.py::"
MESSAGE_TESTS = "unit/test_recovery_messages.py::"
VALUE_TESTS = "unit/test_recovery_values.py::"
PART_TESTS = "unit/test_recovery_parts.py::"
SWEEPS = "model/test_sweeps.py::test_a_program_dies_at_calls_of_the_disk"
SEEDED = "unit/test_seeded_bugs.py::"

MUTANTS = [
    Mutant(
        "outcome-handed-on-before-it-is-durable",
        "A run's result leaves before it is flushed: after a power loss the run does it again.",
        # Leaving out the commit alone changes nothing: the log is closed, with a flush, first.
        [
            Edit(
                CORE,
                "            self.emit(event)\n            self.attempt(self._log.commit)\n",
                "            self.emit(event)\n            self.attempt(self._log._release)\n",
            )
        ],
        [AGENTS + "test_a_result_that_was_handed_out_survives_a_power_loss"],
    ),
    Mutant(
        "clock-and-chance-not-recorded",
        "run.now(), random() and uuid() are not recorded: replay takes another way.",
        [
            Edit(
                CORE,
                "            self.note(ValueRecorded(scope.path, name, occurrence, value))\n",
                "",
            )
        ],
        [AGENTS + "test_the_outside_world_is_recorded"],
    ),
    Mutant(
        "recorded-values-not-served",
        "The clock is asked anew on replay, though it is recorded.",
        [
            Edit(
                CORE,
                "            if recorded is not None:\n                return recorded.value\n",
                "",
            )
        ],
        [AGENTS + "test_the_outside_world_is_recorded"],
    ),
    Mutant(
        "message-edit-not-recorded",
        "messages[i] = ... is not recorded: an edited conversation is back unedited.",
        [
            Edit(
                MESSAGES,
                "            at = range(len(self))[index]\n"
                "            self._splice(at, at + 1, [value])\n",
                "            at = range(len(self))[index]\n"
                '            self._put(at, at + 1, [pack(value, f"messages[{at}]")], [None])\n',
            )
        ],
        [SEEDED + "test_every_way_to_change_the_messages_is_recorded"],
    ),
    Mutant(
        "digest-of-messages-not-renewed",
        "An edit leaves the kept digest: a call with other messages is served the old result.",
        [Edit(MESSAGES, "        del self._chain[start:]\n", "")],
        [
            MESSAGE_TESTS + "test_digests_tell_conversations_apart",
            SNAPSHOT_TESTS + "test_any_changes_of_messages_and_state_are_restored",
        ],
    ),
    Mutant(
        "messages-written-again-on-replay",
        "What replay appends again is recorded again: after two crashes it is there three times.",
        [
            Edit(
                CONVERSATION,
                "            if again is not None:\n                return again\n",
                "",
            )
        ],
        [SWEEPS],
    ),
    Mutant(
        "new-records-before-replay-is-over",
        "What edited code does is recorded before it is known to fit: the old code cannot go on.",
        [
            Edit(
                CORE,
                "        if not self.replay.used_up:\n"
                "            self._pending.append((event, self._is_prologue(event)))\n"
                "            return 0\n",
                "",
            )
        ],
        [AGENTS + "test_changed_code_is_stopped_and_leaves_no_trace"],
    ),
    Mutant(
        "messages-changed-inside-a-tool",
        "A tool may change the messages: served from the log, it does not, and they are missing.",
        [
            Edit(
                CONVERSATION,
                "            if call is not None:\n                raise RecoveryError(\n",
                "            if call is False:\n                raise RecoveryError(\n",
            )
        ],
        [AGENTS + "test_messages_are_not_changed_inside_a_tool"],
    ),
    Mutant(
        "put-off-records-not-in-the-checkpoint",
        "What was put off is written with a checkpoint that does not name it, and asked for anew.",
        [
            Edit(
                CORE,
                "        self._write_pending()  # first, so that the checkpoint knows of it\n",
                "",
            ),
            Edit(
                CORE,
                "        lsn = self.attempt(self.pruning.write,",
                "        self._write_pending()\n        lsn = self.attempt(self.pruning.write,",
            ),
        ],
        [AGENTS + "test_a_checkpoint_knows_what_was_put_off"],
    ),
    Mutant(
        "bytes-before-a-crash-forgotten",
        "What a dead process recorded does not count: a run that dies often takes no checkpoint.",
        [Edit(HISTORY, "size=sum(len(record.packed) for record, _ in items)", "size=0")],
        [AGENTS + "test_checkpoints_by_bytes"],
    ),
    Mutant(
        "bytes-counted-from-the-beginning",
        "After the first checkpoint by size, one is taken behind each step.",
        [Edit(CORE, "self._history.size = self.step, 0", "self._unused = self.step, 0")],
        [AGENTS + "test_checkpoints_by_bytes"],
    ),
    Mutant(
        "state-not-restored",
        "A recovery begins with an empty state.",
        [Edit(LOOP, "            self.state.restore(restored.state)\n", "")],
        [SWEEPS],
    ),
    Mutant(
        "messages-not-restored",
        "A recovery begins with an empty conversation.",
        [Edit(LOOP, "            self.messages.restore(restored.messages, restored.refs)\n", "")],
        [AGENTS + "test_an_agent_that_raises_at_step_5_goes_on_from_the_checkpoint_of_step_3"],
    ),
    Mutant(
        "checkpoint-while-replaying",
        "A checkpoint is taken in the middle of replay: later steps' records stand before it.",
        [
            Edit(
                CORE,
                "self.outlived() or not replay.used_up or replay.later_steps(self.step)",
                "self.outlived()",
            )
        ],
        [SEEDED + "test_no_checkpoint_is_taken_while_records_of_later_steps_are_replayed"],
    ),
    Mutant(
        "checkpoint-before-recorded-steps",
        "A checkpoint is taken before steps that are recorded: what they asked is asked anew.",
        [Edit(CORE, "replay.used_up or replay.later_steps(self.step)", "replay.used_up")],
        [
            "unit/test_recovery_found_by_machine.py::"
            "test_no_checkpoint_is_taken_while_later_steps_are_replayed"
        ],
    ),
    Mutant(
        "checkpoint-while-a-call-is-in-flight",
        "A checkpoint does not wait for calls: one that was in flight is forgotten, and lost.",
        [
            Edit(
                CORE,
                "if self.in_flight or self.outlived() or not",
                "if not",
            )
        ],
        [AGENTS + "test_a_task_that_outlives_its_step_is_not_lost"],
    ),
    Mutant(
        "scopes-of-former-steps-forgotten",
        "Only the step that ends just now is asked for tasks that it has left over.",
        [
            Edit(
                CORE,
                "held = (*self.steps_held, left)",
                "held = (left,)",
            )
        ],
        [
            "unit/test_recovery_together.py::"
            "test_a_checkpoint_looks_for_tasks_of_former_steps_where_there_may_be_some[True]"
        ],
    ),
    Mutant(
        "code-before-the-steps-forgotten",
        "A checkpoint does not name the calls before the first step: they are made again.",
        [Edit(CORE, "prologue=tuple(self._prologue),", "prologue=(),")],
        [AGENTS + "test_tools_before_the_first_step_and_without_steps_are_recorded"],
    ),
    Mutant(
        "agent-swallows-the-stop",
        "What an agent returns after its run was stopped is its result: a parked run is done.",
        [
            Edit(
                AGENT,
                "                    if run.stopped is not None:  # whatever",
                "                    if run.stopped is exc:  # whatever",
            )
        ],
        [AGENTS + "test_an_agent_cannot_swallow_that_its_run_is_parked"],
    ),
    Mutant(
        "stop-is-an-exception",
        "A stop is an Exception: `except Exception` in an agent goes on where it must not.",
        [Edit(ERRORS, "class Stop(BaseException):", "class Stop(Exception):")],
        [
            AGENTS + "test_an_agent_cannot_swallow_that_its_run_is_parked",
            AGENTS + "test_a_full_or_broken_disk_ends_the_run_whatever_the_agent_catches",
        ],
    ),
    Mutant(
        "task-mismatch-not-checked",
        "A run is resumed whatever the task: the answer to another question is returned.",
        [
            Edit(
                AGENT,
                "        raise TaskMismatchError(run_id, started.task, task)\n",
                "        pass\n",
            )
        ],
        [AGENTS + "test_another_task_is_refused_with_both_shown"],
    ),
    Mutant(
        "finished-run-runs-again",
        "A run that has ended is executed again when it is asked for its result.",
        [
            Edit(
                AGENT,
                "                if ended is not None:\n                    return _result",
                "                if ended is False:\n                    return _result",
            )
        ],
        [AGENTS + "test_a_finished_run_returns_its_recorded_result_and_executes_nothing"],
    ),
    Mutant(
        "failed-run-runs-again",
        "A run that failed for good starts over at each call.",
        [
            Edit(
                AGENT,
                "    if isinstance(ended, RunFailed):\n        raise",
                "    if ended is True:\n        raise",
            )
        ],
        [AGENTS + "test_a_permanent_error_ends_the_run_as_failed_for_ever"],
    ),
    Mutant(
        "recovery-without-end",
        "An agent that always fails is recovered for ever: it burns money in a loop.",
        [
            Edit(
                "recovery/_agent_errors.py",
                "goes_on = self._count <= self._limit and",
                "goes_on = self._count <= 10 * self._limit and",
            )
        ],
        [AGENTS + "test_recovery_in_the_process_is_bounded_and_backs_off"],
    ),
    Mutant(
        "left-over-tasks-count",
        "A task of an execution that was recovered still records: two executions mix.",
        [
            Edit(
                AGENT,
                "                finally:\n                    run.close()\n",
                "                finally:\n                    pass\n",
            )
        ],
        [AGENTS + "test_what_a_task_of_a_recovered_run_does_does_not_count"],
    ),
    Mutant(
        "lost-records-ignored",
        "A run is resumed over lost records: a call that one of them held is made again.",
        [
            Edit(
                HISTORY,
                "    if lost:\n        raise DamagedRunError",
                "    if lost is None:\n        raise DamagedRunError",
            )
        ],
        [AGENTS + "test_a_lost_record_stops_the_run_and_nothing_is_executed"],
    ),
    Mutant(
        "broken-checkpoint-ends-the-search",
        "After a checkpoint that does not verify no earlier one is tried: the run starts over.",
        [
            Edit(
                HISTORY,
                "            broken.append(str(exc))\n            continue\n",
                "            broken.append(str(exc))\n            break\n",
            )
        ],
        [SEEDED + "test_a_checkpoint_whose_base_is_damaged_leads_to_one_with_another"],
    ),
    Mutant(
        "outlived-checkpoint-used",
        "A checkpoint that a task outlived is used: what the task did afterwards is lost.",
        [
            Edit(
                HISTORY,
                "if restored is None or not reaches_behind(tail, restored.step):",
                "if True:",
            )
        ],
        [SEEDED + "test_a_checkpoint_that_a_thread_outlived_is_passed_over"],
    ),
    Mutant(
        "recoveries-not-counted",
        "The count of recoveries starts over at each checkpoint.",
        [Edit(HISTORY, "(restored.recoveries if restored else 0)", "0")],
        [AGENTS + "test_an_agent_that_gets_further_each_time_is_always_recovered"],
    ),
    Mutant(
        "failed-run-stays-failed-when-resolved",
        "Resolving the failed call of a failed run changes nothing: the run cannot be saved.",
        [
            Edit(
                HISTORY,
                "            and event.call == ended.call\n",
                "            and False\n",
            )
        ],
        ["unit/test_recovery_resolve.py::test_the_failed_call_that_ended_a_run_is_settled"],
    ),
    Mutant(
        "checkpoint-chosen-without-verification",
        "The checksum of a checkpoint is not compared: the newest by position is restored.",
        [Edit(SNAPSHOTS, '    if actual != body["checksum"]:\n', '    if not body["checksum"]:\n')],
        [SNAPSHOT_TESTS + "test_a_checkpoint_that_is_not_what_it_says_is_not_restored"],
    ),
    Mutant(
        "deleted-state-key-lost-in-a-delta",
        "A checkpoint writes what was added and changed, not what was deleted: it comes back.",
        [
            Edit(
                STATE,
                "self._kept[key].digest for key in state}",
                "self._kept[key].digest for key in self._kept | dict(state)}",
            ),
            Edit(
                STATE,
                "        items = [msgpack.Packer().pack_map_header(len(state))]\n",
                "        state = self._kept | dict(state)\n"
                "        items = [msgpack.Packer().pack_map_header(len(state))]\n",
            ),
        ],
        [SNAPSHOT_TESTS + "test_any_changes_of_messages_and_state_are_restored"],
    ),
    Mutant(
        "state-changed-in-place-unseen",
        "A list that is the same object is taken for unchanged: what was added to it is lost.",
        [
            Edit(
                STATE,
                "self.value = value if type(value) in UNCHANGING else _CHANGING",
                "self.value = value",
            )
        ],
        [SNAPSHOT_TESTS + "test_a_value_that_was_changed_in_place_is_written_again"],
    ),
    Mutant(
        "known-messages-wherever-they-stand",
        "The digest of a conversation is taken from the same messages behind other ones.",
        [Edit(MESSAGES, "before + digest(packed)\n", "digest(packed)\n")],
        [MESSAGE_TESTS + "test_messages_that_were_seen_before_have_the_digests_that_they_have"],
    ),
    Mutant(
        "known-messages-of-other-types",
        "A bytearray in place of bytes is not refused, for its bytes were seen before.",
        [Edit(MESSAGES, "(known[2] and has_slipped(chunk))", "has_slipped(())")],
        [MESSAGE_TESTS + "test_messages_that_look_as_before_and_cannot_be_carried_are_refused"],
    ),
    Mutant(
        "base-is-the-one-before",
        "Each checkpoint is based on the one before: restoring takes as many reads as there are.",
        [Edit(SNAPSHOTS, "if base.index <= index & (index - 1)]", "if base.index <= index - 1]")],
        [SNAPSHOT_TESTS + "test_bytes_per_checkpoint_stay_constant_while_the_conversation_grows"],
    ),
    Mutant(
        "base-chain-cut-short",
        "A checkpoint names its base but not the bases of that: restoring finds half a history.",
        [
            Edit(
                SNAPSHOTS,
                '            "bases": [base.lsn for base in bases],\n',
                '            "bases": [base.lsn for base in bases[-1:]],\n',
            )
        ],
        [SNAPSHOT_TESTS + "test_any_changes_of_messages_and_state_are_restored"],
    ),
    Mutant(
        "base-kept-beyond-an-edit",
        "An edit of an early message does not shorten what a base still says: it comes back "
        "unedited.",
        [Edit(SNAPSHOTS, "            base.keep = min(base.keep, start)\n", "            pass\n")],
        [SNAPSHOT_TESTS + "test_any_changes_of_messages_and_state_are_restored"],
    ),
    Mutant(
        "checkpoint-always-full",
        "Every checkpoint holds the whole conversation: bytes grow with the square of it.",
        [
            Edit(
                SNAPSHOTS,
                "        base = bases[-1] if bases else Base(0, 0, 0)\n",
                "        base = Base(0, 0, 0)\n        bases = []\n",
            )
        ],
        [SNAPSHOT_TESTS + "test_bytes_per_checkpoint_stay_constant_while_the_conversation_grows"],
    ),
    Mutant(
        "saved-checkpoint-not-durable",
        "save() returns before the checkpoint is flushed: a power loss takes it.",
        [Edit(CHECKPOINT, "            saving.log.commit()\n", "            pass\n")],
        [STORE + "test_a_checkpoint_is_durable_when_save_returns"],
    ),
    Mutant(
        "saved-checkpoint-forgets-calls",
        "A checkpoint saved by hand may hide recorded calls: resumed, the run makes them again.",
        [Edit(CHECKPOINT, "        _check_forgotten(saving.history, checkpoint)\n", "")],
        [STORE + "test_a_checkpoint_that_would_forget_calls_is_not_saved"],
    ),
    Mutant(
        "changed-checkpoint-saved",
        "A checkpoint that no longer fits its checksum is saved under a new one.",
        [
            Edit(
                SNAPSHOTS,
                '        if what.checksum not in ("", found):',
                "        if what.checksum is None:",
            )
        ],
        [STORE + "test_a_checkpoint_changed_after_its_checksum_is_not_saved"],
    ),
    Mutant(
        "frozen-values-not-frozen",
        "Messages can be changed in place: the change is in no record and gone after a crash.",
        [
            Edit(
                VALUES,
                "_unpack(packed, True, object_hook=FrozenDict, list_hook=FrozenList)",
                "_unpack(packed, False)",
            )
        ],
        [MESSAGE_TESTS + "test_changing_a_message_in_place_says_how_to_do_it"],
    ),
    Mutant(
        "depth-not-limited",
        "Values of any depth are recorded: what was written cannot be read back.",
        [
            Edit(
                VALUES,
                "    if len(telling) <= DEPTH_MAX or len(telling",
                "    if packed or len(telling",
            )
        ],
        [VALUE_TESTS + "test_a_value_nested_too_deep_is_refused"],
    ),
    Mutant(
        "bytearrays-become-bytes",
        "A value that msgpack changes in silence is recorded: replay sees another type.",
        [
            Edit(
                VALUES,
                "(_SLIPPERY.search(telling) and holds(value, _TAKEN)) or _is_deep(packed, telling)",
                "_is_deep(packed, telling)",
            )
        ],
        [VALUE_TESTS + "test_what_cannot_be_carried_is_refused_with_the_path_to_it"],
    ),
    Mutant(
        "conversation-recorded-in-arguments",
        "run.messages as an argument is recorded whole: each call logs the conversation again.",
        [
            Edit(
                VALUES,
                "        return _default(MessagesDigest(len(value), value.digest()))\n",
                "        return list(value)\n",
            )
        ],
        [VALUE_TESTS + "test_a_conversation_among_arguments_is_recorded_by_digest"],
    ),
    Mutant(
        "part-cut-short",
        "The last byte of a part of an outcome stays behind: a message is read back as another.",
        [
            Edit(
                PARTS,
                "[start:stop])] = lsn, start, stop\n",
                "[start:stop])] = lsn, start, stop - 1\n",
            )
        ],
        [
            PART_TESTS
            + "test_a_message_that_is_or_holds_a_part_of_an_outcome_is_recorded_by_reference"
        ],
    ),
    Mutant(
        "part-taken-of-what-is-there",
        "A part that its outcome does not have is taken for as much of it as there is.",
        [Edit(PARTS, "if len(pieces[-1]) != stop - start:", "if len(pieces[-1]) > stop - start:")],
        [PART_TESTS + "test_forged_parts_are_an_error_of_ours"],
    ),
    Mutant(
        "parts-out-of-order",
        "The pieces of a message with several parts are in another order.",
        [Edit(PARTS, "in sorted(found):", "in reversed(sorted(found)):")],
        [PART_TESTS + "test_any_message_of_any_outcomes_is_read_back_byte_for_byte"],
    ),
    Mutant(
        "parts-without-limit",
        "A log of a few KiB becomes a conversation of gigabytes.",
        [Edit(PARTS, "    if borrowed > BORROWED_MAX:\n", "    if borrowed < 0:\n")],
        [PART_TESTS + "test_a_small_log_does_not_become_a_conversation_of_gigabytes"],
    ),
    Mutant(
        "borrowing-not-counted",
        "More is recorded by reference than a reader takes: the checkpoint cannot be restored.",
        [Edit(PARTS, "            self.borrowed += parts.borrowed\n", "            pass\n")],
        [PART_TESTS + "test_no_more_is_borrowed_than_is_read_again"],
    ),
    Mutant(
        "lent-parts-not-missed",
        "A checkpoint is listed as sound though an outcome that its messages need is damaged.",
        [Edit(STORED, "            needed |= lent.get(item, set())\n", "            pass\n")],
        [PART_TESTS + "test_a_message_whose_outcome_is_damaged_is_not_made_up"],
    ),
    Mutant(
        "parts-not-moved",
        "In a fork, parts of messages are taken from whatever has that LSN there.",
        [
            Edit(
                DRAFT,
                "return unpack(pack_stand_in(found.moved(self.at)))",
                "return unpack(pack_stand_in(found))",
            )
        ],
        [PART_TESTS + "test_a_fork_has_the_messages_of_its_run"],
    ),
    Mutant(
        "order-of-named-arguments-counts",
        "The same call with its keywords in another order is another call: it is made twice.",
        [Edit(VALUES, "for name in sorted(kwargs)}", "for name in kwargs}")],
        [VALUE_TESTS + "test_the_order_of_named_arguments_says_nothing"],
    ),
]
