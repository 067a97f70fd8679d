"""Seeded bugs in undo and in streams."""

from __future__ import annotations

from tests.mutants._mutant import Edit, Mutant

PLAN, UNDO = "recovery/_compensation.py", "recovery/_undo.py"
OUTSIDE, RESOLVE = "recovery/_undo_outside.py", "recovery/_resolve.py"
STREAM, CORE, CALL = "recovery/_stream.py", "recovery/_core.py", "recovery/_call.py"
KEYS, REPLAY, TOOL = "recovery/_keys.py", "recovery/_replay.py", "recovery/_tool.py"

UNDOES = "unit/test_recovery_undo.py::"
STREAMS = "unit/test_recovery_stream.py::"

MUTANTS = [
    Mutant(
        "undo-oldest-first",
        "The oldest call is undone first: the account is closed before the money is back.",
        [
            Edit(
                PLAN,
                "key=lambda one: one.outcome_lsn, reverse=True)",
                "key=lambda one: one.outcome_lsn)",
            )
        ],
        [UNDOES + "test_what_returned_is_undone_newest_first"],
    ),
    Mutant(
        "undo-in-the-order-of-the-intents",
        "Calls that ran side by side are undone in the order in which they began.",
        [
            Edit(
                PLAN,
                "key=lambda one: one.outcome_lsn, reverse=True)",
                "key=lambda one: one.lsn, reverse=True)",
            )
        ],
        [UNDOES + "test_the_order_is_that_of_the_outcomes"],
    ),
    Mutant(
        "undo-runs-twice",
        "What an earlier undo has undone is undone again: the refund is paid twice.",
        [Edit(PLAN, "if one.lsn not in done]", "if one.lsn]")],
        [UNDOES + "test_undoing_again_undoes_what_is_new"],
    ),
    Mutant(
        "undo-takes-in-its-own-work",
        "The list is made of all that is recorded, so that a resumed undo has a shorter one.",
        [Edit(PLAN, "if one.lsn < self.bound)", "if one.lsn < self.bound or one.intent.scope)")],
        [UNDOES + "test_after_a_crash_nothing_is_undone_twice_whatever_the_checkpoint"],
    ),
    Mutant(
        "undo-from-the-checkpoint",
        "The log is read from the newest checkpoint only: what is before it stays done.",
        [
            Edit(
                UNDO,
                "for entry in decoded(run.records, 1, [], lost):",
                "for entry in run._history.entries:",
            )
        ],
        [UNDOES + "test_after_a_crash_nothing_is_undone_twice_whatever_the_checkpoint"],
    ),
    Mutant(
        "undo-passes-a-call-in-doubt",
        "A call of which nobody knows whether it happened is passed over, and stays done.",
        [
            Edit(
                UNDO,
                "        run.park([recorded_call(run, one) for one in doubt], undo=True)\n",
                "        pass\n",
            )
        ],
        [UNDOES + "test_a_call_in_doubt_is_resolved_before_anything_is_undone"],
    ),
    Mutant(
        "undo-of-what-failed",
        "A call that failed is undone all the same.",
        [
            Edit(
                PLAN,
                "            case CallFailed() | CallResolved() | CallAbandoned(begun=False):\n"
                '                self.state = "did not happen"',
                "            case CallFailed() | CallResolved() | CallAbandoned(begun=False):\n"
                '                self.state = "happened"',
            )
        ],
        [UNDOES + "test_what_failed_or_was_resolved_as_failed_is_not_undone"],
    ),
    Mutant(
        "undo-inside-and-outside-of-a-call",
        "A trip is cancelled as a whole, and then its hotel once more.",
        [Edit(PLAN, 'if outer.intent.undo and outer.state == "happened":', "if False:")],
        [UNDOES + "test_an_outer_compensation_covers_what_was_called_inside"],
    ),
    Mutant(
        "undo-of-an-undo",
        "What a compensation calls is undone by the next undo.",
        [
            Edit(
                PLAN,
                "            if outer.intent.tool == UNDO_CALL:\n                return True\n",
                "",
            )
        ],
        [UNDOES + "test_what_a_compensation_calls_is_not_undone_itself"],
    ),
    Mutant(
        "undo-goes-on-behind-a-failure",
        "A compensation that failed is passed over, and the agent told that all is undone.",
        [
            Edit(
                UNDO,
                "            raise UndoError(run.run_id, [each",
                "            continue\n            raise UndoError(run.run_id, [each",
            )
        ],
        [UNDOES + "test_a_failed_compensation_stops_the_undo_which_then_goes_on_there"],
    ),
    Mutant(
        "undo-with-a-new-key-for-each-try",
        "A compensation that is tried again has another idempotency key: a second refund.",
        [Edit(KEYS, '        key = key._replace(scope="", occurrence=0)', "        pass")],
        [UNDOES + "test_the_error_is_the_same_on_replay_and_the_key_on_the_next_try"],
    ),
    Mutant(
        "undo-finds-out-too-late-that-a-tool-is-missing",
        "Half is undone before it turns out that a compensation is not known.",
        [
            Edit(
                UNDO,
                "    missing = [one for one in todo if one.intent.tool not in known]\n",
                "    missing: list[Made] = []\n",
            )
        ],
        [UNDOES + "test_a_tool_that_is_not_known_is_missed_before_anything_is_undone"],
    ),
    Mutant(
        "undo-records-arguments-by-digest",
        "Large arguments are not in the record: the compensation is called without them.",
        [
            Edit(
                CALL,
                "undo, small = function_name(spec.undo), _for_people(made)",
                "undo = function_name(spec.undo)",
            )
        ],
        [UNDOES + "test_arguments_of_any_size_and_messages_are_recorded_whole"],
    ),
    Mutant(
        "undo-takes-any-tool-of-the-name",
        "Of two modules' tools of one name, the one that was loaded last is taken.",
        [
            Edit(
                TOOL,
                "undoable_tools[spec.name] = spec if is_same else None",
                "undoable_tools[spec.name] = spec",
            )
        ],
        [UNDOES + "test_a_name_that_two_modules_use_is_not_known"],
    ),
    Mutant(
        "undo-outside-leaves-the-run-alive",
        "A run that is being undone from outside can still be resumed, and goes on booking.",
        [Edit(OUTSIDE, "            log.append(*encode(RunUndone(who, why)))\n", "")],
        [UNDOES + "test_a_run_is_undone_from_outside_however_it_ended"],
    ),
    Mutant(
        "undo-outside-gives-up-first",
        "The run is given up before it is known whether it can be undone.",
        [
            Edit(
                OUTSIDE,
                "                read_plan(before, Undoing(log.last_lsn + 1), known)\n",
                "                pass\n",
            )
        ],
        [UNDOES + "test_outside_nothing_is_written_when_a_tool_is_missing"],
    ),
    Mutant(
        "undo-outside-stuck-at-its-failure",
        "An undo from outside that failed fails for ever: its failure is served from the log.",
        [
            Edit(
                OUTSIDE,
                "if call in undos:\n                began = lsn",
                "if call in undos:\n                pass",
            )
        ],
        [UNDOES + "test_outside_it_goes_on_after_a_crash_a_failure_and_a_doubt"],
    ),
    Mutant(
        "doubt-resolved-for-an-undo-is-served-to-the-agent",
        "A call that the agent had cancelled has an outcome on replay: the code goes another way.",
        [Edit(REPLAY, " or (isinstance(event, CallResolved) and event.undo)", "")],
        [UNDOES + "test_a_call_in_doubt_is_resolved_before_anything_is_undone"],
    ),
    Mutant(
        "stream-executed-again-on-replay",
        "The outcome of a stream is not what its call returned: the model is asked again.",
        [
            Edit(
                STREAM,
                "        if self.replayed:\n            yield from self._again()\n",
                "        yield from self._again()\n",
            )
        ],
        [STREAMS + "test_chunks_come_live_and_the_outcome_on_replay"],
    ),
    Mutant(
        "stream-left-open-unnoticed",
        "A stream that was left by a break is forgotten: its call is never recorded.",
        [
            Edit(
                CORE,
                "                if stream.is_left():\n                    stream.refuse()\n",
                "                pass\n",
            )
        ],
        [STREAMS + "test_a_stream_that_was_left_open_stops_the_run_at_what_comes_next"],
    ),
    Mutant(
        "stream-left-early-reads-on",
        "Leaving a block early reads the stream to its end: the stopped model goes on talking.",
        [
            Edit(
                STREAM,
                "        except _Left:\n            yield closing\n",
                "        except _Left:\n"
                "            while (chunk := (yield following)) is not _END:\n"
                "                self._received.append(pack(chunk, ''))\n",
            )
        ],
        [STREAMS + "test_leaving_a_block_early_records_what_was_received"],
    ),
    Mutant(
        "stream-not-closed",
        "The generator of a stream that was left early is not closed: its connection stays open.",
        [
            Edit(
                STREAM,
                "        except _Left:\n            yield closing\n",
                "        except _Left:\n            pass\n",
            )
        ],
        [STREAMS + "test_a_generator_is_closed_when_its_block_is_left"],
    ),
    Mutant(
        "stream-restarted-behind-its-consumer",
        "A stream that failed after some chunks is tried again: they come twice.",
        [Edit(STREAM, "not self._received and again(exc, 1)", "again(exc, 1)")],
        [STREAMS + "test_a_stream_is_tried_again_until_a_chunk_has_gone_out"],
    ),
    Mutant(
        "stream-chunks-shared-with-the-consumer",
        "What a consumer does to a chunk changes the outcome.",
        [
            Edit(
                STREAM,
                "self._received.append(packed := self._packed(chunk, invoke))\n"
                "                yield _Chunk(unpack(packed))",
                "self._packed(chunk, invoke)\n                self._received.append(chunk)\n"
                "                yield _Chunk(chunk)",
            ),
            Edit(
                STREAM,
                "chunks = [unpack(packed) for packed in self._received]",
                "chunks = list(self._received)",
            ),
        ],
        [STREAMS + "test_a_tool_says_what_its_chunks_make_up_and_the_other_way_round"],
    ),
    Mutant(
        "stream-cancelled-is-recorded-as-received",
        "A stream that was cancelled has half an answer as its outcome.",
        [
            Edit(
                STREAM,
                "        return exc  # a cancellation",
                "        return _Left()  # a cancellation",
            )
        ],
        [STREAMS + "test_a_cancelled_consumer_cancels_the_call"],
    ),
]
