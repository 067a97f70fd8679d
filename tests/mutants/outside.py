"""Seeded bugs in what comes from outside: waits, signals, cancellation, approvals, parking."""

from __future__ import annotations

from tests.mutants._mutant import Edit, Mutant

MESSAGE = "recovery/_message.py"
WAITING, INBOX, APPROVAL = "recovery/_waiting.py", "recovery/_inbox.py", "recovery/_approval.py"
CALL, REPLAY, TOOL = "recovery/_call.py", "recovery/_replay.py", "recovery/_tool.py"
OUTSIDE, STORE, SIGNALS = (
    "recovery/_outside.py", "recovery/stores/protocol.py", "recovery/_signals.py",
)  # fmt: skip

WAIT = "unit/test_recovery_waiting.py::"
SIGNALLED, DEADLINE = "contract/test_signals.py::", "contract/test_deadlines.py::"
APPROVE = "unit/test_recovery_approval.py::"
SWEEPS = "model/test_sweeps.py::test_a_program_dies_at_calls_of_the_disk"

MUTANTS = [
    Mutant(
        "deadline-begun-anew",
        "A sleep that a crash interrupts begins anew: a run that crashes every hour never wakes.",
        [Edit(CALL, "given = recorded.arguments or given", "pass")],
        [WAIT + "test_a_sleep_ends_at_the_deadline_that_was_recorded_first"],
    ),
    Mutant(
        "duration-part-of-the-identity",
        "A wait is known by its time-out too: changing that strands the runs that wait.",
        [
            Edit(
                WAITING,
                'ToolSpec("wait_for", _wait_for, "retry", waits=True, identified_by=1)',
                'ToolSpec("wait_for", _wait_for, "retry", waits=True)',
            )
        ],
        [WAIT + "test_the_deadline_of_a_wait_is_the_one_recorded_first"],
    ),
    Mutant(
        "clock-set-back-sleeps-on",
        "A sleep looks at the wall clock alone: set back by a year, the agent sleeps for a year.",
        [
            Edit(
                WAITING,
                "return run.wall_clock() if time.monotonic() - began >= seconds else None",
                "return None",
            )
        ],
        [WAIT + "test_a_clock_that_is_set_back_makes_a_sleep_no_longer_than_it_was_to_be"],
    ),
    Mutant(
        "signal-spent-when-noticed",
        "A signal is spent by the wait that noticed it: one that lost a race has lost it.",
        [
            Edit(CALL, "    if not spec.only_waits:", "    if True:"),
            Edit(
                WAITING, "yield from _in_turn(run, waiting, _BEHIND_ALL + int(over * 1e9))", "pass"
            ),
        ],
        [SIGNALLED + "test_each_acknowledged_signal_is_seen_once_or_is_unread"],
    ),
    Mutant(
        "busy-agent-never-gets-its-signal",
        "New calls do not let a wait that is over go first: there is always an outcome before it.",
        [Edit(CALL, "if not spec.only_waits and is_due(run):", "if False:")],
        [SIGNALLED + "test_an_agent_that_is_always_at_work_gets_its_signal"],
    ),
    Mutant(
        "late-signal-counts",
        "What was sent after the deadline counts for whoever looks later.",
        [Edit(INBOX, "waiting[0].time_ns / 1e9 <= until", "True")],
        [DEADLINE + "test_a_signal_counts_for_a_wait_by_when_it_was_sent"],
    ),
    Mutant(
        "late-yes-counts",
        "A yes three days late is paid, when no process had the run.",
        [Edit(APPROVAL, " and made.time_ns / 1e9 <= self.until", "")],
        [DEADLINE + "test_a_yes_that_got_in_after_the_deadline_does_not_count"],
    ),
    Mutant(
        "reminder-before-the-answer",
        "A sleep that is over comes before an answer that was there before.",
        [
            Edit(WAITING, "if not _another_is_before(run, waiting, still):", "if True:"),
            Edit(WAITING, "_BEHIND_ALL + int(over * 1e9)", "_BEHIND_ALL"),
        ],
        [DEADLINE + "test_an_answer_and_a_sleep_beside_it_end_in_the_order_of_their_times"],
    ),
    Mutant(
        "new-inbox-swallows",
        "An inbox that was made anew counts from one: what is in it was read long ago.",
        [
            Edit(
                "recovery/_inbox_check.py",
                '        return f"its inbox is gone, of',
                '        return "" and f"its inbox is gone, of',
            )
        ],
        [
            "contract/test_inbox_files.py::test_a_lost_inbox_is_reported_and_swallows_no_later_signal"
        ],
    ),
    Mutant(
        "signal-taken-again",
        "What was taken is forgotten with the process: the same signal ends the next wait too.",
        [Edit(SIGNALS, "self._taken[event.uid, event.name] = max(known, event.inbox)", "pass")],
        [WAIT + "test_a_signal_is_spent_by_the_wait_that_took_it_whatever_crashes"],
    ),
    Mutant(
        "taken-not-in-checkpoints",
        "A checkpoint does not carry which signals were taken: behind it they are taken again.",
        [
            Edit(
                SIGNALS,
                "for (uid, name), lsn in self._taken.items()]",
                "for (uid, name), lsn in ()]",
            )
        ],
        [WAIT + "test_what_was_taken_before_a_checkpoint_is_spent"],
    ),
    Mutant(
        "signals-of-all-names-in-one-count",
        "Taking a signal spends the earlier ones of other names: they are lost.",
        [
            Edit(
                SIGNALS,
                "return self._taken.get((uid, name), 0)",
                "return max((n for (u, _), n in self._taken.items() if u == uid), default=0)",
            )
        ],
        [WAIT + "test_signals_of_a_name_are_taken_in_the_order_sent"],
    ),
    Mutant(
        "message-counts-before-it-is-durable",
        "A message counts as soon as it can be read: a power loss gives its number to another one, "
        "which is never taken.",
        [
            Edit(
                INBOX, "while self._held and self._held[0].lsn <= durable_lsn:", "while self._held:"
            )
        ],
        [WAIT + "test_a_message_counts_once_it_is_durable"],
    ),
    Mutant(
        "inbox-read-anew-each-time",
        "Each look reads the whole inbox: a run beside 10,000 signals does nothing but read.",
        [
            Edit(
                INBOX,
                "        durable_lsn = self._reader.durable_lsn() if self._held else 0\n",
                "        self._arrivals, last = self._reader.arrivals(), getattr(self, 'last', 0)\n"
                "        self._arrivals = (item for item in self._arrivals\n"
                "                          if item is None or getattr(item, 'lsn', 0) > last)\n"
                "        durable_lsn = self._reader.durable_lsn() if self._held else 0\n",
            ),
            Edit(
                INBOX,
                "                self._held.append(item)\n",
                "                self._held.append(item)\n                self.last = item.lsn\n",
            ),
        ],
        [WAIT + "test_the_inbox_is_read_on_from_where_it_was_left"],
    ),
    Mutant(
        "key-of-a-sender-ignored",
        "A sender that tries again sends twice, whatever key it gives.",
        [Edit(MESSAGE, "if known != key or ", "if True or ")],
        [WAIT + "test_a_signal_with_a_key_is_sent_once"],
    ),
    Mutant(
        "parks-beside-a-tool-at-work",
        "A run parks while a tool is at work: the call is in doubt, or is made again.",
        [Edit(WAITING, "run.in_flight > run.waiting + run.children.idle()", "not run.waiting")],
        [WAIT + "test_a_run_does_not_park_while_a_call_is_at_work"],
    ),
    Mutant(
        "wait-in-doubt",
        "A call that only waits is taken for one in doubt: the report of each recovery names it.",
        [Edit(CALL, '"wait" if spec.only_waits else spec.after_crash', "spec.after_crash")],
        [WAIT + "test_a_call_that_waits_is_not_in_doubt"],
    ),
    Mutant(
        "cancel-forgotten",
        "A run that no process has is only asked to end: until somebody runs it, it is open.",
        [
            Edit(
                OUTSIDE,
                "        if history.ended is None:\n            in_doubt",
                "        if False:\n            in_doubt",
            )
        ],
        [WAIT + "test_a_run_that_no_process_has_is_ended_at_once"],
    ),
    Mutant(
        "cancel-unheard",
        "A live run never looks into its inbox while it makes calls: it cannot be cancelled.",
        [Edit("recovery/_core.py", "        self.inbox.look()\n", "")],
        [WAIT + "test_a_live_run_ends_at_the_next_thing_that_it_does"],
    ),
    Mutant(
        "yes-bound-to-the-lsn",
        "A yes counts for whatever call has the LSN: a yes to pay(10, alice) pays 9999 to mallory.",
        [
            Edit(
                MESSAGE,
                '"about": read("of", str),',
                '"about": str(unpack(body["call"])),',
            ),
            Edit(
                APPROVAL,
                "run.inbox.decision(call.idempotency_key, ",
                "run.inbox.decision(str(call.lsn), ",
            ),
        ],
        [APPROVE + "test_a_yes_never_runs_another_call"],
    ),
    Mutant(
        "first-decision-counts",
        "The first decision counts: a no that was durable before the call began is not honoured.",
        [
            Edit(
                INBOX,
                "return last_of(counts)",
                "return last_of(counts[:1])",
            )
        ],
        [APPROVE + "test_the_last_decision_counts_that_is_there_when_the_call_begins"],
    ),
    Mutant(
        "waiting-call-taken-for-begun",
        "A call that waits for approval is in doubt after a crash, though nothing was done.",
        [
            Edit(
                "recovery/_recorded.py",
                "return self.intent.asks_until is None or yes",
                "return True",
            )
        ],
        [APPROVE + "test_a_call_that_waits_is_not_in_doubt_and_one_that_has_begun_is"],
    ),
    Mutant(
        "yes-not-recorded",
        "The yes is not a record: a crash while the call works asks again, and pays twice.",
        [Edit(APPROVAL, "        run.emit(decided)\n", "")],
        [APPROVE + "test_a_call_waits_for_a_yes_and_is_asked_about_once"],
    ),
    Mutant(
        "yes-not-durable",
        "The call begins before the yes is durable: after a power loss nobody has said it.",
        [
            Edit(
                APPROVAL,
                "begins before the yes is durable in the run's log.\n        yield Commit()\n",
                "begins before the yes is durable in the run's log.\n",
            ),
            Edit(
                "recovery/_attempts.py",
                "                yield Commit()\n",
                "                pass\n",
            ),
        ],
        [SWEEPS],
    ),
    Mutant(
        "no-forgotten-on-retry",
        "A denied call that is to be made again is denied by the old no, for ever.",
        [Edit(REPLAY, "asking.heard = max(asking.heard, (event.inbox, event.sent or 0))", "pass")],
        [APPROVE + "test_a_call_denied_for_good_asks_anew_when_it_is_to_be_made_again"],
    ),
    Mutant(
        "arguments-to-approve-by-digest",
        "Large arguments are recorded by digest: a person says yes to what nobody can see.",
        [
            Edit(
                CALL,
                "        event = replace(event, args=packed)\n",
                "        pass\n",
            )
        ],
        [APPROVE + "test_large_arguments_are_shown_whole"],
    ),
    Mutant(
        "looking-makes-a-run",
        "Whoever settles a call of a run that is not there makes one, under a name mistyped.",
        [
            Edit(
                "recovery/_existing.py",
                "    reader_of(store, run_id).close()  # a claim would make it\n",
                "",
            )
        ],
        ["unit/test_recovery_existing.py::test_there_is_no_run_and_none_is_made"],
    ),
]
