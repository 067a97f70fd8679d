"""Seeded bugs in what is told of a run, and in what is counted against its budget."""

from __future__ import annotations

from tests.mutants._mutant import Edit, Mutant

FOLLOWING, HERALD, PROGRESS = (
    "recovery/_following.py", "recovery/_herald.py", "recovery/_progress.py",
)  # fmt: skip
BUDGET, ATTEMPTS, CALL, CORE = (
    "recovery/_budget.py", "recovery/_attempts.py", "recovery/_call.py", "recovery/_core.py",
)  # fmt: skip
TALLY, HISTORY = "recovery/_tally.py", "recovery/_history.py"

TOLD = "unit/test_recovery_progress.py::"
BUDGETS = "unit/test_recovery_budget.py::"

MUTANTS = [
    Mutant(
        "totals-start-anew-at-a-checkpoint",
        "What a checkpoint carries is not restored: after a crash the bar is back at zero.",
        [Edit(TALLY, "            if name in carried:\n", "            if name in ():\n")],
        [TOLD + "test_totals_survive_crashes_and_checkpoints"],
    ),
    Mutant(
        "prologue-counted-twice",
        "The calls before the first step are read back with each checkpoint, and counted again.",
        [
            Edit(
                HISTORY,
                "tallies_of(tail, restored), _accepted",
                "tallies_of(entries, restored), _accepted",
            )
        ],
        [TOLD + "test_totals_survive_crashes_and_checkpoints"],
    ),
    Mutant(
        "last-event-sent-again",
        "A client that reconnects gets the event that it has seen last a second time.",
        [Edit(FOLLOWING, "event.lsn > self._after", "event.lsn >= self._after")],
        [TOLD + "test_reading_goes_on_behind_any_event"],
    ),
    Mutant(
        "later-checkpoint-taken-for-earlier",
        "A client that reconnects is told the totals of a later checkpoint, and misses events.",
        [Edit(FOLLOWING, "snapshot.lsn <= after", "snapshot.lsn <= after + 9")],
        [TOLD + "test_reading_goes_on_behind_any_event"],
    ),
    Mutant(
        "follower-ends-at-the-first-failure",
        "A run that failed and was mended is not followed to its end.",
        [
            Edit(
                FOLLOWING,
                "                        yield event\n                elif self._is_over",
                "                        yield event\n"
                "                        if tally.status == 'failed':\n"
                "                            return\n"
                "                elif self._is_over",
            )
        ],
        [TOLD + "test_it_ends_when_the_run_has_failed_and_goes_on_when_it_does"],
    ),
    Mutant(
        "follower-waits-for-a-finished-run",
        "A follower of a finished run waits for ever.",
        [Edit(FOLLOWING, 'tally.status not in ("running", "parked")', 'tally.status == "failed"')],
        [TOLD + "test_where_following_ends"],
    ),
    Mutant(
        "damage-not-told",
        "Damage is passed over without a word: a follower takes the run for whole.",
        [
            Edit(
                FOLLOWING,
                "                if item is not None:\n                    event",
                "                if isinstance(item, Damage):\n                    continue\n"
                "                if item is not None:\n                    event",
            ),
            Edit(FOLLOWING, "import LogReader,", "import Damage, LogReader,"),
        ],
        [TOLD + "test_damage_is_an_event_and_reading_goes_on"],
    ),
    Mutant(
        "event-loop-waits-for-the-disk",
        "A log is read in the event loop: one follower of a long run stops all others.",
        [
            Edit(
                FOLLOWING,
                "        reading = asyncio.ensure_future(asyncio.to_thread(_batch, arrivals))\n"
                "        try:\n",
                "        reading = asyncio.get_running_loop().create_future()\n"
                "        reading.set_result(_batch(arrivals))\n        try:\n",
            )
        ],
        [TOLD + "test_reading_is_done_in_a_thread"],
    ),
    Mutant(
        "callback-ends-the-run",
        "A progress bar that raises takes the run down with it.",
        [
            Edit(
                HERALD,
                "        except Exception:\n            _logger.exception(",
                "        except LookupError:\n            _logger.exception(",
            )
        ],
        [TOLD + "test_what_the_callback_raises_is_logged_and_hurts_nobody"],
    ),
    Mutant(
        "callback-is-part-of-the-run",
        "A tool that a callback uses is recorded as the agent's call, and missed on replay.",
        [Edit(HERALD, "current_scope.set(None)", "current_scope.set(current_scope.get())")],
        [TOLD + "test_what_the_callback_does_is_no_part_of_the_run"],
    ),
    Mutant(
        "resumed-process-not-told-where-it-is",
        "The first event of a resumed process is its first new one: the bar waits at zero for it.",
        [
            Edit(
                HERALD,
                "    if history.herald is not None:\n        history.herald.event(",
                '    if history.herald is not None and event.kind != "run_resumed":\n'
                "        history.herald.event(",
            )
        ],
        [TOLD + "test_a_resumed_process_is_told_where_it_is_and_nothing_that_is_replayed"],
    ),
    Mutant(
        "dead-calls-in-flight",
        "Calls of a process that died are in flight for ever.",
        [
            Edit(
                PROGRESS,
                "is in no flight.\n                self._in_flight.clear()\n",
                "is in no flight.\n                pass\n",
            )
        ],
        [TOLD + "test_a_resumed_process_is_told_where_it_is_and_nothing_that_is_replayed"],
    ),
    Mutant(
        "budget-exceeded-by-one",
        "A limit is noticed when it is exceeded: one step, or call, more than was paid for.",
        [Edit(BUDGET, "spent >= limit", "spent > limit")],
        [BUDGETS + "test_calls_are_limited_exactly_and_a_higher_budget_goes_on"],
    ),
    Mutant(
        "steps-not-limited",
        "A step begins whatever the budget says.",
        [Edit(CORE, '                admit(self, "step")\n', "")],
        [BUDGETS + "test_steps_are_limited_exactly"],
    ),
    Mutant(
        "attempts-not-limited",
        "A retry loop goes on beyond the budget.",
        [Edit(ATTEMPTS, '        admit(run, "call", spec.name)\n', "")],
        [BUDGETS + "test_attempts_count"],
    ),
    Mutant(
        "call-in-doubt-not-limited",
        "A call that is made again after a crash is not held against the budget.",
        [
            Edit(
                CALL,
                '                admit(run, "call", key.tool)\n                run.emit',
                "                run.emit",
            )
        ],
        [BUDGETS + "test_a_call_in_doubt_that_is_made_again_counts_twice"],
    ),
    Mutant(
        "admitted-before-waiting",
        "Calls are admitted, then wait for replay: all of them slip under the limit for one.",
        [
            Edit(
                CALL, '    admit(run, "call", key.tool)\n    return call_of', "    return call_of"
            ),
            Edit(
                CALL,
                "        ready = yield Wait(",
                '        admit(run, "call", key.tool)\n        ready = yield Wait(',
            ),
        ],
        [BUDGETS + "test_calls_that_waited_for_replay_do_not_slip_under_the_limit"],
    ),
    Mutant(
        "parked-time-counts",
        "A week of waiting for somebody counts as a week of work.",
        [
            Edit(
                PROGRESS,
                "        elif isinstance(event, RunStarted | RunResumed):\n",
                "        elif isinstance(event, RunStarted):\n",
            )
        ],
        [BUDGETS + "test_seconds_are_those_of_processes_that_had_the_run"],
    ),
    Mutant(
        "usage-asked-anew-on-replay",
        "run.usage() is not recorded: an agent that branches on it takes another way on replay.",
        [
            Edit(
                CORE,
                'self._value("usage", lambda: list(astuple(self.used())))',
                "astuple(self.used())",
            )
        ],
        [BUDGETS + "test_an_agent_that_looks_at_its_usage_sees_the_same_on_replay"],
    ),
    Mutant(
        "usage-not-recorded",
        "What a call used is not in its outcome: no budget of tokens or cost ever ends a run.",
        [Edit(ATTEMPTS, "_packed(spec, value), used)", "_packed(spec, value))")],
        [BUDGETS + "test_tokens_and_cost_are_looked_at_before_each_step_and_call"],
    ),
    Mutant(
        "reply-that-is-handed-on-counts-again",
        "A tool that returns the reply of the model it called counts its tokens a second time.",
        [Edit(BUDGET, "        if scope.metered:\n", "        if scope is None:\n")],
        [BUDGETS + "test_a_reply_that_is_handed_on_counts_once"],
    ),
    Mutant(
        "inner-usage-forgotten-on-replay",
        "An inner call that is served from the log is not seen: the outer one counts its tokens.",
        [
            Edit(
                CALL,
                "(settled.event, CallReturned) and settled.event.usage is not None:\n",
                "(settled.event, CallReturned) and settled.cause:\n",
            )
        ],
        [BUDGETS + "test_a_reply_that_is_handed_on_counts_once"],
    ),
    Mutant(
        "paid-result-lost",
        "A usage function that raises fails the call: what was paid for is lost.",
        [
            Edit(
                BUDGET,
                "    except Exception:\n        _logger.exception(",
                "    except LookupError:\n        _logger.exception(",
            )
        ],
        [BUDGETS + "test_what_goes_wrong_in_counting_loses_no_result"],
    ),
]
