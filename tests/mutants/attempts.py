"""Attempts, time-outs, cancellation, stopping, and divergences that were accepted."""

from __future__ import annotations

from tests.mutants._mutant import Edit, Mutant

ATTEMPTS, RETRY, CALL = "recovery/_attempts.py", "recovery/_retry.py", "recovery/_call.py"
REPLAY, CORE, HISTORY = "recovery/_replay.py", "recovery/_core.py", "recovery/_history.py"
DRIFT = "recovery/_drift.py"
RUN, AGENT, STOPPING = "recovery/_run.py", "recovery/_agent.py", "recovery/_stopping.py"
TOOL = "recovery/_tool.py"

TRIED = "unit/test_recovery_attempts.py::"
ENDED = "unit/test_recovery_stopping.py::"
ACCEPTED = "unit/test_recovery_accept.py::"
AGAIN = "unit/test_recovery_earlier.py::"
EARLIER, INSIDE = "recovery/_earlier.py", "recovery/_inside.py"
LETTING_GO = "recovery/_letting_go.py"

MUTANTS = [
    Mutant(
        "attempts-start-over",
        "Failed attempts of an earlier process are not counted: each crash gives three more.",
        [Edit(REPLAY, "                about.tries = about.tries.next()\n", "")],
        [TRIED + "test_attempts_survive_the_crash_and_so_does_the_time_of_the_next"],
    ),
    Mutant(
        "pause-starts-over",
        "A resumed run tries again at once, and not when it was to.",
        [
            Edit(
                ATTEMPTS,
                "            yield Attend(until(run, when))\n            return None\n",
                "            return None\n",
            )
        ],
        [TRIED + "test_attempts_survive_the_crash_and_so_does_the_time_of_the_next"],
    ),
    Mutant(
        "failed-attempt-is-in-doubt",
        "A crash between two attempts leaves the call in doubt, though the last one is known.",
        [
            Edit(
                "recovery/_recorded.py",
                "        return isinstance(self.last, AttemptFailed)\n",
                "        return False\n",
            ),
            Edit(
                ATTEMPTS,
                "        case AttemptFailed(retry_at=when):\n",
                "        case AttemptFailed(retry_at=when) if not when:\n",
            ),
        ],
        [TRIED + "test_attempts_survive_the_crash_and_so_does_the_time_of_the_next"],
    ),
    Mutant(
        "next-attempt-pays-again",
        "What the failed attempt has recorded is not looked at, live: a payment is made twice.",
        [
            Edit(
                INSIDE,
                "        run.attempt(run.replay.end_attempt, lsn, _inside(run, lsn))\n",
                "        pass\n",
            )
        ],
        [AGAIN + "test_what_returned_is_served_and_what_failed_is_made_again"],
    ),
    Mutant(
        "next-attempt-fails-as-the-last-one",
        "Failures inside are served to the next attempt: all attempts fail the same way.",
        [
            Edit(
                "recovery/_recorded.py",
                "return self.past and isinstance(last, CallFailed)",
                "return False and last",
            )
        ],
        [AGAIN + "test_each_failure_is_made_again_until_the_attempts_are_used_up"],
    ),
    Mutant(
        "next-attempt-pays-in-another-order",
        "Equal calls count from 1 in each attempt: the one that failed first is paid once more.",
        [Edit(EARLIER, "key=lambda one: (not one.done, one.key", "key=lambda one: (one.key")],
        [AGAIN + "test_one_of_equal_calls_that_succeeded_later_is_not_made_again"],
    ),
    Mutant(
        "next-attempt-has-to-do-the-same",
        "Calls of an attempt that failed are waited for: a body that does something else diverges.",
        [Edit(REPLAY, "        if call.past and not call.is_open_effect", "        if False")],
        [AGAIN + "test_an_attempt_may_do_something_else_than_the_last_one"],
    ),
    Mutant(
        "doubt-forgotten-with-the-attempt",
        "A payment in doubt is forgotten where the next attempt does something else.",
        [
            Edit(REPLAY, "if call.past and not call.is_open_effect", "if call.past"),
            Edit(INSIDE, "[*in_doubt, *recorded_inside(run, lsn)]", "in_doubt"),
        ],
        [AGAIN + "test_a_side_effect_in_doubt_is_not_forgotten"],
    ),
    Mutant(
        "next-attempt-waits-for-nobody",
        "A call that its neighbour raised past is at work when the next attempt makes it again.",
        [
            Edit(
                INSIDE,
                "    yield Attend(landed(run, scope, LANDING_S if cut else math.inf))\n",
                "",
            )
        ],
        [AGAIN + "test_what_one_of_several_raised_past_gets_to_its_end"],
    ),
    Mutant(
        "left-behind-counts",
        "What is left of a failed attempt records its outcome over that of the next one.",
        [
            Edit(INSIDE, "    scope.over = scope.over or ended is not None\n", ""),
            Edit(ATTEMPTS, "    scope.over = scope.over or ended is not None\n", ""),
        ],
        [AGAIN + "test_what_does_not_is_in_doubt_and_counts_no_more"],
    ),
    Mutant(
        "failed-child-stays-failed",
        "The run of a child that failed in a failed attempt is not told to go on.",
        [Edit(ATTEMPTS, "run.children.asked(recorded.lsn, run.emit(again))", "run.emit(again)")],
        [AGAIN + "test_a_child_that_failed_inside_goes_on"],
    ),
    Mutant(
        "attempt-not-recorded-before-it-is-made",
        "The second attempt at a side effect has no record: a crash in it looks like none.",
        [
            Edit(
                ATTEMPTS,
                "        run.emit(CallRetried(call.lsn, call.attempt))\n\n\ndef resume",
                "\n\ndef resume",
            )
        ],
        [TRIED + "test_an_attempt_that_a_crash_cut_short_is_in_doubt_as_any"],
    ),
    Mutant(
        "hopeless-errors-tried-again",
        "A PermanentError is tried again as often as any.",
        [Edit(RETRY, " or isinstance(error, _HOPELESS)", "")],
        [TRIED + "test_a_permanent_error_is_not_tried_again_whatever_counts"],
    ),
    Mutant(
        "one-attempt-too-many",
        "attempts=3 makes four.",
        [Edit(RETRY, "if failed >= self.attempts", "if failed > self.attempts")],
        [TRIED + "test_the_last_failure_is_the_outcome"],
    ),
    Mutant(
        "time-out-of-a-side-effect-is-a-failure",
        "A payment that timed out counts as failed: the agent pays again.",
        [Edit(ATTEMPTS, '    if spec.when_cut == "fail":\n', "    if spec.when_cut:\n")],
        [TRIED + "test_a_side_effect_that_times_out_is_in_doubt"],
    ),
    Mutant(
        "time-out-of-the-tool-taken-for-ours",
        "A TimeoutError that the tool itself raised, knowing what it did, is in doubt.",
        [
            Edit(
                "recovery/_invoking.py",
                "            if not timer.expired():",
                "            if not timer:",
            )
        ],
        [TRIED + "test_a_time_out_of_the_tool_s_own_is_an_exception_like_any"],
    ),
    Mutant(
        "cancellation-not-recorded",
        "A call that the agent cancelled is made again on replay: the agent goes another way.",
        [
            Edit(
                LETTING_GO,
                '        run.emit(CallAbandoned(call.lsn, call.attempt, "cancelled", went_on, '
                "one.begun))\n",
                "",
            )
        ],
        [TRIED + "test_what_the_agent_cancelled_is_cancelled_on_replay"],
    ),
    Mutant(
        "cancelled-side-effect-forgotten",
        "A side effect that the agent cancelled is over: nobody finds out whether it happened.",
        [Edit(CORE, "park_for(self, let_go(self))", "let_go(self)")],
        [TRIED + "test_a_side_effect_that_the_agent_cancels_is_in_doubt"],
    ),
    Mutant(
        "cancelled-with-the-run",
        "A call that ends with its process counts as cancelled by the agent.",
        [
            Edit(
                CORE,
                "        self.cut_short.append(one)\n",
                "        self.cut_short.append(one)\n        self.act()\n",
            )
        ],
        [TRIED + "test_a_run_that_is_cancelled_from_outside_records_nothing_of_it"],
    ),
    Mutant(
        "cancelled-before-it-began-is-in-doubt",
        "A call that was never started parks the run.",
        [
            Edit(
                ATTEMPTS,
                "                run.cut(replace(one, begun=False))\n",
                "                run.cut(one)\n",
            )
        ],
        [TRIED + "test_a_call_that_was_cancelled_before_it_began_is_no_effect"],
    ),
    Mutant(
        "calls-inside-a-cancelled-call-waited-for",
        "What a cancelled call had recorded inside is waited for: unchanged code diverges.",
        [Edit(REPLAY, "lambda outer: outer.done or outer.cancelled", "lambda outer: outer.done")],
        [TRIED + "test_calls_inside_a_cancelled_call_are_no_divergence"],
    ),
    Mutant(
        "policy-of-the-agent-ignored",
        "after_crash= of an agent changes nothing.",
        [
            Edit(
                "recovery/_identity.py",
                "    spec = run.settings.adapted(spec)\n    if spec.waits:",
                "    if spec.waits:",
            )
        ],
        [TRIED + "test_an_agent_can_decide_for_its_tools"],
    ),
    Mutant(
        "stop-loses-the-outcome",
        "A stop while a side effect is under way forgets its outcome: it is in doubt.",
        [
            Edit(
                ATTEMPTS,
                "        yield from _settle_inside(run, scope, None)\n",
                "        run.check()\n        yield from _settle_inside(run, scope, None)\n",
            )
        ],
        [ENDED + "test_a_side_effect_gets_to_its_end_and_is_recorded"],
    ),
    Mutant(
        "stop-waits-for-what-can-be-repeated",
        "Ctrl-C waits for the model's answer, however long that takes.",
        [
            Edit(
                RUN,
                "self.interruptible.items() if busy.isdisjoint(calls)}",
                "self.interruptible.items() if busy.isdisjoint(calls)}\n"
                "        if tasks:\n            raise SystemExit('it would wait')",
            )
        ],
        [ENDED + "test_what_is_safe_to_repeat_is_not_waited_for"],
    ),
    Mutant(
        "stop-cuts-what-is-inside-a-call",
        "A stop cancels a call that can be repeated, and with it the payment that is made in it.",
        [
            Edit(
                RUN,
                "in self.interruptible.items() if busy.isdisjoint(calls)}",
                "in self.interruptible.items()}",
            )
        ],
        [ENDED + "test_a_side_effect_inside_a_call_that_can_be_repeated_gets_to_its_end"],
    ),
    Mutant(
        "stop-in-the-middle-of-a-side-effect",
        "A call inside a side effect stops, and the side effect with it: it is in doubt.",
        [
            Edit(
                CORE,
                "        asked = self._asked is not None and "
                "self.under_way.keys().isdisjoint(scope.calls)\n",
                "        asked = self._asked is not None\n",
            )
        ],
        [ENDED + "test_a_side_effect_that_makes_calls_gets_to_its_end"],
    ),
    Mutant(
        "stop-cuts-what-is-beside-it",
        "A task group that is stopped cancels its other tasks, and the payments that they make.",
        [Edit(CALL, "        yield Attend(leave(run))\n", "")],
        [ENDED + "test_a_task_group_does_not_cancel_what_is_under_way_beside_a_stop"],
    ),
    Mutant(
        "stop-looks-like-a-cancellation",
        "The task that awaited the run counts as cancelled, though nobody cancelled it.",
        [
            Edit(
                "recovery/_drivers.py",
                "                task.uncancel()\n",
                "                pass\n",
            )
        ],
        [ENDED + "test_what_is_safe_to_repeat_is_not_waited_for"],
    ),
    Mutant(
        "handlers-left-behind",
        "The handler of a signal stays when the run is over.",
        [
            Edit(
                STOPPING,
                "    finally:\n        restore()\n",
                "    finally:\n        pass\n",
            ),
            Edit(STOPPING, "        restore()\n        stop(", "        stop("),
        ],
        [ENDED + "test_a_second_signal_does_what_it_always_did"],
    ),
    Mutant(
        "accepted-for-good",
        "Who accepts one divergence accepts all that come.",
        [
            Edit(DRIFT, "        self._history.accepted = False\n", ""),
            Edit(
                HISTORY,
                "                accepted = False\n            case",
                "                pass\n            case",
            ),
        ],
        [ACCEPTED + "test_it_holds_for_one_divergence"],
    ),
    Mutant(
        "accepting-forgets-a-call-in-doubt",
        "A call in doubt is dropped with the rest: nobody asks whether it happened.",
        [
            Edit(
                DRIFT,
                "if not self._history.accepted or in_doubt:",
                "if not self._history.accepted:",
            )
        ],
        [ACCEPTED + "test_a_call_in_doubt_is_not_forgotten"],
    ),
    Mutant(
        "what-was-dropped-comes-back",
        "The next recovery waits for what the accepted code had dropped: it diverges again.",
        [Edit(REPLAY, "        replay._dropped = dropped\n", "        replay._dropped = set()\n")],
        [ACCEPTED + "test_the_new_code_goes_on_and_every_later_resumption_with_it"],
    ),
    Mutant(
        "dropped-prologue-comes-back",
        "A checkpoint names calls before the first step, and not that they were dropped.",
        [
            Edit(
                CORE,
                ".isdisjoint(event.records):\n            self._prologue[lsn] = None\n",
                ".isdisjoint(event.records):\n            pass\n",
            )
        ],
        [ACCEPTED + "test_code_before_the_first_step_may_diverge"],
    ),
    Mutant(
        "dropped-calls-made-anew",
        "A dropped call that the new code makes in the same way is executed a second time.",
        [
            Edit(
                REPLAY,
                "        for gone in (self.changes, self._steps, self._open):\n",
                "        for gone in (self.changes, self._steps, self._open, self._calls):\n",
            )
        ],
        [ACCEPTED + "test_the_new_code_goes_on_and_every_later_resumption_with_it"],
    ),
]
