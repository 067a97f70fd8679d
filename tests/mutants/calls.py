"""Seeded bugs in the life of a call: intent, effect, outcome, replay, doubt."""

from __future__ import annotations

from tests.mutants._mutant import Edit, Mutant

CALL, REPLAY, KEYS = "recovery/_call.py", "recovery/_replay.py", "recovery/_keys.py"
DOUBT, ATTEMPTS = "recovery/_doubt.py", "recovery/_attempts.py"
TOOL, RUN, CORE = "recovery/_tool.py", "recovery/_run.py", "recovery/_core.py"
RESOLVE = "recovery/_resolve.py"
TURNS, LIVENESS = "recovery/_turns.py", "recovery/_liveness.py"

AGENT = "unit/test_recovery_agent.py::"
TOOLS = "unit/test_recovery_tool.py::"
REPLAYS = "unit/test_recovery_replay.py::"
SEEDED = "unit/test_seeded_bugs.py::"
TOGETHER = "unit/test_recovery_together.py::"
TURN_TESTS = "unit/test_recovery_turns.py::"
DIFFERENCE = "unit/test_recovery_difference.py::"
SWEEPS = "model/test_sweeps.py::test_a_program_dies_at_calls_of_the_disk"

MUTANTS = [
    Mutant(
        "intent-after-the-effect",
        "The intent is recorded with the outcome: a call that a crash cut short left no trace.",
        [
            Edit(
                CALL,
                "    return call_of(run, run.emit(event), event, made.shown,",
                "    run.late = event\n"
                "    return call_of(run, run._log.last_lsn + 1, event, made.shown,",
            ),
            Edit(
                ATTEMPTS,
                "        event = CallReturned(call.lsn, _packed(spec, value",
                "        if getattr(run, 'late', None) is not None:\n"
                "            run.emit(run.late)\n            run.late = None\n"
                "        event = CallReturned(call.lsn, _packed(spec, value",
            ),
        ],
        [AGENT + "test_a_call_in_doubt_parks_the_run_until_it_is_resolved"],
    ),
    Mutant(
        "intent-not-committed-before-the-effect",
        "A side effect starts before its intent is durable: a power loss forgets that it began.",
        [Edit(ATTEMPTS, "                yield Commit()\n", "                pass\n")],
        [AGENT + "test_a_side_effect_is_known_about_after_a_power_loss"],
    ),
    Mutant(
        "commit-decided-by-the-result",
        "Tools that reconcile are taken for safe to repeat: their effects start unrecorded.",
        [
            Edit(
                TOOL,
                'return self.after_crash == "retry"',
                'return self.after_crash in ("retry", "reconcile")',
            )
        ],
        [SEEDED + "test_every_policy_but_retry_has_its_intent_durable_first"],
    ),
    Mutant(
        "result-handed-on-unrecorded",
        "The agent gets a result that no record holds: after a crash the call is in doubt.",
        [
            Edit(
                ATTEMPTS,
                "        return Settled(run.emit(event), event)\n    except RefusedValueError",
                "        return Settled(call.lsn, event)\n    except RefusedValueError",
            )
        ],
        [AGENT + "test_an_agent_that_raises_at_step_5_goes_on_from_the_checkpoint_of_step_3"],
    ),
    Mutant(
        "failure-handed-on-unrecorded",
        "The agent gets an exception that no record holds: after a crash the call is in doubt.",
        [
            Edit(
                ATTEMPTS,
                "        return Settled(run.emit(event), event, exc, ",
                "        return Settled(call.lsn, event, exc, ",
            )
        ],
        [AGENT + "test_the_agent_sees_the_same_exception_first_and_on_replay"],
    ),
    Mutant(
        "in-doubt-executed-silently",
        "A call without an outcome is made again without asking: the e-mail is sent twice.",
        [
            Edit(
                CALL,
                "            settled = yield from resume(run, spec, recorded, call)\n",
                "            settled = None\n",
            )
        ],
        [AGENT + "test_a_call_in_doubt_parks_the_run_until_it_is_resolved"],
    ),
    Mutant(
        "park-is-retry",
        "The default policy repeats a call in doubt: the e-mail is sent twice.",
        [
            Edit(
                DOUBT,
                '        case "park":\n            how = Resolution.unknown()',
                '        case "park":\n            how = Resolution.retry()',
            )
        ],
        [AGENT + "test_a_call_in_doubt_parks_the_run_until_it_is_resolved"],
    ),
    Mutant(
        "report-policy-executes-again",
        "A call in doubt that was to be reported is made again.",
        [
            Edit(
                DOUBT,
                "            how = Resolution.outcome(OutcomeUnknown(spec.name, "
                "call.idempotency_key))\n",
                "            how = Resolution.retry()\n",
            )
        ],
        [AGENT + "test_report_gives_the_agent_the_same_outcome_unknown_ever_after"],
    ),
    Mutant(
        "reconcile-unknown-means-it-did-not-happen",
        "A hook that cannot tell is taken for `no`: what did happen is done again.",
        [
            Edit(
                DOUBT,
                "            how = yield from _reconcile(run, spec, call)\n",
                "            how = yield from _reconcile(run, spec, call)\n"
                "            how = Resolution.retry() if how.how == 'unknown' else how\n",
            )
        ],
        [AGENT + "test_reconcile_asks_the_outside_world"],
    ),
    Mutant(
        "failing-reconcile-means-it-did-not-happen",
        "A hook that raises is taken for `no`: an outage of the bank repeats the transfer.",
        [
            Edit(
                DOUBT,
                "run.run_id, call)  # fmt: skip\n        return Resolution.unknown()",
                "run.run_id, call)  # fmt: skip\n        return Resolution.retry()",
            )
        ],
        [AGENT + "test_reconcile_asks_the_outside_world"],
    ),
    Mutant(
        "reconcile-recorded-as-part-of-the-run",
        "What a hook asks is recorded: the next recovery is served the answer of the last one.",
        [
            Edit(
                DOUBT,
                "Invoke(spec.reconcile, (call,), {}, None)",
                "Invoke(spec.reconcile, (call,), {}, Scope(run, f'call {call.lsn}'))",
            ),
            Edit(DOUBT, "AfterCrash, Arguments, Call,", "AfterCrash, Arguments, Scope, Call,"),
        ],
        [SEEDED + "test_a_reconcile_hook_asks_anew_at_each_recovery"],
    ),
    Mutant(
        "resolution-not-recorded",
        "What a policy decided is not recorded: the next recovery decides anew, otherwise.",
        [
            Edit(
                DOUBT,
                "        return Settled(run.emit(event), event)\n    except",
                "        return Settled(call.lsn, event)\n    except",
            )
        ],
        [AGENT + "test_report_gives_the_agent_the_same_outcome_unknown_ever_after"],
    ),
    Mutant(
        "resolution-not-durable",
        "resolve() lets go of the log without a flush: a person's decision is lost with power.",
        # Leaving out the commit alone changes nothing: closing the log makes all of it durable.
        [
            Edit(
                RESOLVE,
                "call in for_undo)))\n        log.commit()\n\n\ndef accept",
                "call in for_undo)))\n        log._release()\n\n\ndef accept",
            )
        ],
        [SEEDED + "test_a_resolution_survives_a_power_loss"],
    ),
    Mutant(
        "resolve-takes-any-call",
        "resolve() settles calls that are not in doubt: a result is overwritten by hand.",
        [
            Edit(
                RESOLVE,
                "or call not in in_doubt | failed:",
                "or call not in keys:",
            )
        ],
        ["unit/test_recovery_resolve.py::test_a_call_with_an_outcome_stays_as_it_is"],
    ),
    Mutant(
        "digest-of-arguments-ignored",
        "A call is known by its name alone: other arguments are served the old result.",
        [
            Edit(
                CALL,
                "CallKey(scope.path, spec.name, made.call_id, made.digest)",
                'CallKey(scope.path, spec.name, made.call_id, b"")',
            )
        ],
        [SEEDED + "test_the_same_call_with_other_arguments_is_not_served_the_old_result"],
    ),
    Mutant(
        "all-recorded-calls-looked-at-for-each-record",
        "What is left of the record is looked for anew for each record: a long replay takes hours.",
        [
            Edit(
                "recovery/_replay.py",
                "        self._pass_by()\n        return not self._left and not self.changes\n",
                "        return not self.unclaimed() and not self.changes\n",
            )
        ],
        [
            "unit/test_recovery_replay.py::"
            "test_whether_all_is_used_up_is_known_without_looking_at_each_call_again"
        ],
    ),
    Mutant(
        "calls-inside-a-settled-call-are-waited-for",
        "A call that is covered by the outcome of the one around it counts as unclaimed for ever.",
        [
            Edit(
                "recovery/_replay.py",
                "        while self._left and not self._is_unclaimed(self._left[0]):",
                "        while self._left and self._left[0].key not in self._calls:",
            )
        ],
        [
            "unit/test_recovery_replay.py::"
            "test_what_is_used_up_is_what_has_nothing_unclaimed_and_stays_so"
        ],
    ),
    Mutant(
        "occurrence-not-counted",
        "Equal calls of a step are one: the second is served the first one's result.",
        [
            Edit(
                CALL,
                "key = run.replay.earlier.placed(key.nth(scope.next_occurrence(key)))",
                "key = key.nth(1)",
            )
        ],
        [TOOLS + "test_each_call_of_each_run_has_a_key_of_its_own"],
    ),
    Mutant(
        "call-id-ignored",
        "The model's id of a call does not count: equal calls swap results when they swap places.",
        [
            Edit(
                CALL,
                "CallKey(scope.path, spec.name, made.call_id, made.digest)",
                'CallKey(scope.path, spec.name, "", made.digest)',
            )
        ],
        [AGENT + "test_the_same_call_id_with_other_arguments_is_shown_side_by_side"],
    ),
    Mutant(
        "scope-ignored",
        "A call is known without its step: the same call in a later step is never made.",
        [
            Edit(
                CALL,
                "CallKey(scope.path, spec.name, made.call_id, made.digest)",
                'CallKey("1", spec.name, made.call_id, made.digest)',
            )
        ],
        [SWEEPS],
    ),
    Mutant(
        "idempotency-key-not-stable",
        "Each start of a run has a uid of its own: a retried payment has another key, and is paid.",
        [
            Edit(
                CORE,
                "self.run_id, self.uid = history.started.run_id, history.started.uid",
                "self.run_id, self.uid = history.started.run_id, uuid.uuid4().hex",
            )
        ],
        [TOOLS + "test_a_key_is_the_same_for_every_attempt"],
    ),
    Mutant(
        "idempotency-key-of-the-name",
        "The key does not hold the run's uid: two runs' payments of one amount are one payment.",
        [Edit(KEYS, "packb((uid, *key))", 'packb(("", *key))')],
        [
            TOOLS + "test_each_call_of_each_run_has_a_key_of_its_own",
            "unit/test_recovery_keys.py::test_idempotency_keys_differ_between_runs_and_are_stable",
        ],
    ),
    Mutant(
        "attempt-number-starts-over",
        "The number of the attempt is not read back: a tool that gives up after three never does.",
        [
            Edit(
                REPLAY,
                "            about.attempts = event.attempt\n",
                "            pass\n",
            )
        ],
        [SEEDED + "test_attempts_are_counted_over_recoveries"],
    ),
    Mutant(
        "failure-executed-again-at-replay",
        "A recorded exception is no outcome: the call that raised is made again.",
        [
            Edit(
                "recovery/_recorded.py",
                "                return not (self.failed_with_its_attempt or self.stood_still)\n",
                "                return False\n",
            )
        ],
        [AGENT + "test_the_agent_sees_the_same_exception_first_and_on_replay"],
    ),
    Mutant(
        "nested-outcome-used-for-its-parent",
        "The outcome of a call inside a call settles the outer one: it never gets to its end.",
        [
            Edit(
                REPLAY,
                "import BEFORE_STEPS, UNDO_CALL, CallKey, outer_call",
                "import BEFORE_STEPS, UNDO_CALL, CallKey, outer_call as _outer",
            ),
            Edit(
                REPLAY,
                "        outer_lsn = outer_call(scope)\n",
                "        outer_lsn = _outer(scope)\n",
            ),
            Edit(
                REPLAY,
                "        about.last, about.last_lsn, about.last_ns = event, lsn, time_ns\n",
                "        about.last, about.last_lsn, about.last_ns = event, lsn, time_ns\n"
                "        outer = self._by_lsn.get(_outer(about.key.scope))\n"
                "        if outer is not None:\n"
                "            outer.last, outer.last_lsn = event, lsn\n",
            ),
        ],
        [TOOLS + "test_a_call_that_is_made_again_is_served_the_calls_inside_it"],
    ),
    Mutant(
        "calls-inside-a-served-call-not-covered",
        "Calls inside a call with an outcome are waited for: every resumed run has diverged.",
        [Edit(REPLAY, "return outer is None or over(outer) or self", "return False and self")],
        [TOOLS + "test_calls_inside_calls_are_recorded_and_covered_by_the_outer_one"],
    ),
    Mutant(
        "call-given-out-twice",
        "A recorded call can be claimed again: a loop that calls twice gets one result twice.",
        [
            Edit(
                REPLAY,
                "        call = self._calls.pop(key, None)\n",
                "        call = self._calls.get(key)\n",
            )
        ],
        [REPLAYS + "test_each_call_is_given_out_once"],
    ),
    Mutant(
        "outcomes-served-out-of-recorded-order",
        "Outcomes are served as they are asked for: concurrent coroutines go on in another order.",
        [Edit(REPLAY, "return not self._open or self._open[0][0] >= lsn", "return True")],
        [REPLAYS + "test_outcomes_are_served_in_the_order_in_which_they_were_recorded"],
    ),
    # Left out: a new outcome for whose turn no later one waits (`add_outcome`). No program is known
    # in which the later one comes to it first: it survives every test, as it did those before.
    # Left out: a call that is cancelled while it waits for its turn keeps it. Nobody waits for
    # another for longer than half a second, so nothing comes of it but that.
    Mutant(
        "divergence-found-after-the-effect",
        "A new call does not wait for recorded ones: edited code acts before it is stopped.",
        [
            Edit(
                CALL,
                "ready = yield Wait(lambda: run.ends(scope) or run.caught_up(), turn=0)",
                "ready = True",
            )
        ],
        [AGENT + "test_changed_code_is_stopped_and_leaves_no_trace"],
    ),
    Mutant(
        "left-out-call-not-noticed",
        "An agent may return with recorded calls unclaimed: code that drops a call passes for "
        "done.",
        [
            Edit(
                CORE,
                "            if lsn and not self.drift.may_finish():\n                self.drift."
                'diverge(Sides(lsn, recorded, "the agent returned"))\n',
                "",
            )
        ],
        [AGENT + "test_an_agent_that_ends_early_has_diverged"],
    ),
    Mutant(
        "parked-run-executes-siblings",
        "A stopped run still takes calls: siblings of the call in doubt act while it is parked.",
        [
            Edit(
                CORE,
                "        if stopped is not None and self.ends(scope):\n"
                "            self.stop(stopped)\n",
                "",
            )
        ],
        [AGENT + "test_an_agent_cannot_swallow_that_its_run_is_parked"],
    ),
    Mutant(
        "tool-swallows-the-stop",
        "A tool that catches everything is recorded as done though the call in it was stopped.",
        [
            Edit(
                TOOL,
                "        if self.stopped or self.left_behind:\n            self.run.check()\n",
                "        return\n",
            )
        ],
        [AGENT + "test_a_tool_cannot_swallow_that_a_call_inside_it_parked"],
    ),
    Mutant(
        "first-execution-sees-another-exception",
        "The agent gets the tool's own exception, and a rebuilt one on replay: it goes another "
        "way.",
        [
            Edit(
                CALL,
                "            exc = rebuilt(failed",
                "            exc = settled.cause or rebuilt(failed",
            )
        ],
        [AGENT + "test_the_agent_sees_the_same_exception_first_and_on_replay"],
    ),
    Mutant(
        "exception-types-imported-by-name",
        "A type named in the log is looked up anywhere: a crafted log has any class constructed.",
        [
            Edit(
                "recovery/_raised.py",
                "        if isinstance(found, type) and issubclass(found, root):\n"
                "            return found\n    newest",
                "        if isinstance(found, type):\n            return found\n    newest",
            )
        ],
        [TOOLS + "test_what_a_log_names_is_never_looked_up_but_among_exceptions"],
    ),
    Mutant(
        "scope-lost-in-tools",
        "A plain tool runs without its scope: the calls that it makes are not recorded.",
        [
            Edit(
                "recovery/_invoking.py",
                'too long."""\n    token = current_scope.set(effect.scope)',
                'too long."""\n    token = current_scope.set(None)',
            )
        ],
        [TOOLS + "test_a_call_that_is_made_again_is_served_the_calls_inside_it"],
    ),
    Mutant(
        "large-arguments-recorded-whole",
        "Arguments are recorded whole whatever their size: history grows with the square.",
        [
            Edit(
                CALL,
                "packed if len(packed) <= ARGS_SIZE_MAX else None",
                "packed",
            )
        ],
        [SEEDED + "test_large_arguments_are_recorded_by_digest"],
    ),
    Mutant(
        "outcomes-handed-on-together",
        "Outcomes are handed on as they come: how many a coroutine sees at once is another number "
        "on replay, and the run is said to have diverged.",
        [
            Edit(
                TURNS,
                "if wait.ready() and (not wait.turn or self.at_rest() or self._run.alone()):",
                "if wait.ready():",
            )
        ],
        [TURN_TESTS + "test_an_outcome_is_handed_on_when_the_one_before_has_come_to_rest"],
    ),
    Mutant(
        "other-runs-keep-a-run-from-its-rest",
        "What is ready to run for other runs counts: each run looks at the tasks of all others.",
        [Edit(TURNS, "return scope is None or scope.run is self._run", "return True")],
        [TOGETHER + "test_what_other_runs_have_to_do_keeps_nobody_waiting"],
    ),
    Mutant(
        "what-has-no-context-is-for-nobody",
        "What other code of the process has set going is passed over: an outcome is handed on "
        "before the agent has come to rest.",
        [
            Edit(
                TURNS,
                "return scope is None or scope.run is self._run",
                "return scope is not None and scope.run is self._run",
            )
        ],
        [TOGETHER + "test_what_other_runs_have_to_do_keeps_nobody_waiting"],
    ),
    Mutant(
        "commit-that-began-earlier-is-shared",
        "Whoever comes while a commit is under way is told when it ends: its intent may not be "
        "durable when the side effect starts.",
        [
            Edit(
                "recovery/_together.py",
                "taken = {one: self._waiting.pop(one) for",
                "taken = {one: self._waiting[one] for",
            ),
            Edit(
                "recovery/_together.py",
                "            self._threads += 1\n",
                "            self._threads += 9\n",
            ),
            Edit(
                "recovery/_together.py",
                "        self._threads -= 1\n",
                "        self._threads -= 9\n        self._waiting = {}\n",
            ),
        ],
        [TOGETHER + "test_who_comes_when_a_commit_has_begun_waits_for_the_next_one"],
    ),
    Mutant(
        "whoever-is-quick-gets-ahead",
        "A thread takes those who came last: with many runs some wait for seconds.",
        [
            Edit(
                "recovery/_together.py",
                "list(islice(self._waiting, share))",
                "list(self._waiting)[-share:]",
            )
        ],
        [TOGETHER + "test_nobody_is_passed_over_and_the_loop_is_told_once_for_a_share"],
    ),
    Mutant(
        "sleepers-given-up-after-a-minute",
        "A coroutine that sleeps before its call is taken for changed code: the run stops.",
        [
            Edit(
                TURNS,
                "STRICT_WAIT_S = {Held.HELD: 0.0, Held.SHARED: 60.0, Held.MOVING: 600.0}",
                "STRICT_WAIT_S = {Held.HELD: 0.0, Held.SHARED: 60.0, Held.MOVING: 60.0}",
            )
        ],
        [TURN_TESTS + "test_a_wrapper_may_sleep_for_minutes_before_a_recorded_call"],
    ),
    Mutant(
        "sleepers-not-seen",
        "A coroutine asleep is taken for one that waits for the record: unchanged code diverges.",
        [
            Edit(
                LIVENESS,
                "not codes.isdisjoint(_TIMED.union(calls)):\n        return Held.MOVING",
                "not codes.isdisjoint(_TIMED.union(calls)):\n        return Held.HELD",
            )
        ],
        [TURN_TESTS + "test_a_wrapper_may_sleep_for_minutes_before_a_recorded_call"],
    ),
    Mutant(
        "gatherers-waited-for",
        "Who waits for tasks is taken for one that may still make calls: changed code hangs for a "
        "minute before it is told.",
        [
            Edit(
                LIVENESS,
                'awaited = getattr(waiter, "_children", [waiter])  # of a gather',
                "awaited = [waiter]",
            )
        ],
        [TURN_TESTS + "test_changed_code_beside_tasks_that_all_wait_is_told_at_once"],
    ),
    Mutant(
        "heartbeats-waited-for",
        "A task that sleeps again and again holds up every outcome for ten minutes.",
        [Edit(TURNS, "MOVES_MAX = 5\n", "MOVES_MAX = 1 << 30\n")],
        [TURN_TESTS + "test_a_heartbeat_holds_up_no_outcome"],
    ),
    Mutant(
        "order-not-waited-for",
        "A recorded outcome does not wait for the coroutine that was before it: who comes first "
        "is another one on replay.",
        [
            Edit(
                TURNS,
                "            chosen = first or self._new[:1]\n",
                "            chosen = first or self._new[:1]\n"
                "        elif not chosen:\n            chosen = first\n",
            )
        ],
        ["contract/test_concurrency.py::test_a_shape_survives_kills"],
    ),
    Mutant(
        "threads-at-work-not-seen",
        "A thread of the agent that is busy before its call is taken for gone: the run stops.",
        [
            Edit(
                LIVENESS,
                "return Held.SHARED if frame.f_code.co_filename in _LOCKS else Held.MOVING",
                "return Held.SHARED",
            )
        ],
        [TURN_TESTS + "test_a_thread_of_a_plain_agent_may_take_its_time_before_a_recorded_call"],
    ),
    Mutant(
        "stopped-agent-left-waiting",
        "A run that is parked in a worker hangs for ever in the coroutine that waits for its work.",
        [Edit(RUN, "            self._cancel({self._root})\n", "            pass\n")],
        [TURN_TESTS + "test_a_run_that_is_stopped_in_a_worker_ends_where_its_consumer_waits"],
    ),
    Mutant(
        "cancellation-left-behind",
        "Whoever awaits a run that was stopped counts as cancelled ever after.",
        [Edit(RUN, "            root.uncancel()\n", "            pass\n")],
        [TURN_TESTS + "test_a_run_that_is_stopped_in_a_worker_ends_where_its_consumer_waits"],
    ),
    Mutant(
        "wrong-call-shown",
        "A divergence shows any recorded call beside the new one: nobody sees what was edited.",
        [
            Edit(
                REPLAY,
                "(call.key.scope == key.scope) + (call.key.tool == key.tool)))  # fmt: skip",
                "-call.lsn))  # fmt: skip",
            )
        ],
        [DIFFERENCE + "test_of_several_recorded_calls_the_one_most_like_the_new_one_is_shown"],
    ),
    Mutant(
        "equal-values-of-other-types-not-told-apart",
        "A 1 that has become True is not shown as different: the error names no difference.",
        [Edit("recovery/_difference.py", 'pack(a, "") == pack(b, "")', "bool(a == b)")],
        [DIFFERENCE + "test_the_path_to_each_difference_is_named"],
    ),
]
