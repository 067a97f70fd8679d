"""Seeded bugs in the timeline: in what is drawn where, and in what its page lets through."""

from __future__ import annotations

from tests.mutants._mutant import Edit, Mutant

LAYOUT, CALLS, MODEL, MESSAGES, PAGE = (
    f"tools/logdump/_timeline_{name}.py"
    for name in ("layout", "calls", "model", "messages", "page")
)
TOLD = "unit/test_logdump_timeline.py::"

MUTANTS = [
    Mutant(
        "calls-that-share-a-record-share-a-lane",
        "A call that begins where another one ends is drawn over its end.",
        [Edit(LAYOUT, "taken[0][0] < bar.first", "taken[0][0] <= bar.first")],
        [TOLD + "test_calls_that_share_a_record_are_not_in_one_lane"],
    ),
    Mutant(
        "room-only-until-the-outer-call-ends",
        "What is inside a call and outlives it is drawn over by the next call.",
        [Edit(LAYOUT, "max([bar.last, *(inner.last for inner in bar.inside)])", "bar.last")],
        [TOLD + "test_what_is_inside_and_lasts_longer_holds_the_room_of_both"],
    ),
    Mutant(
        "too-few-free-lanes-are-enough",
        "A call with others inside takes free lanes that are not as many: they overlap.",
        [Edit(LAYOUT, "if count == height:", "if count:")],
        [TOLD + "test_no_two_calls_overlap_in_a_lane_and_what_is_inside_is_below"],
    ),
    Mutant(
        "lanes-of-what-is-inside-count-from-the-top",
        "Calls inside a call are drawn wherever, and not below it.",
        [Edit(LAYOUT, "inner.lane += bar.lane + 1", "inner.lane += 1")],
        [TOLD + "test_what_is_inside_a_call_is_below_it_and_above_the_next"],
    ),
    Mutant(
        "time-runs-backwards",
        "A clock that was set back draws what came later before what came earlier.",
        [Edit(LAYOUT, "            pause = 0\n", "")],
        [TOLD + "test_a_clock_that_was_set_back_stands_still_and_is_noted"],
    ),
    Mutant(
        "work-is-broken-off",
        "A call that took long is drawn as short as a wait.",
        [Edit(LAYOUT, "if not at_work and pause:", "if pause:")],
        [TOLD + "test_time_at_work_is_drawn_to_scale_however_long_it_is"],
    ),
    Mutant(
        "waits-fill-the-page",
        "A run that sleeps often is drawn as waits, and nothing is left for its work.",
        [Edit(LAYOUT, "max(WAIT_SHARE, WAITS_SHARE * len(self._waits))", "WAIT_SHARE")],
        [TOLD + "test_many_waits_leave_room_for_the_work"],
    ),
    Mutant(
        "work-beside-a-wait-counts-as-waiting",
        "What is done while something else waits is cut out of the timeline.",
        [Edit(CALLS, '"wait" in phases and "work" not in phases', '"wait" in phases')],
        [TOLD + "test_only_waiting_counts_as_a_wait"],
    ),
    Mutant(
        "the-dead-process-decided",
        "What somebody decided later is taken for the last record of the process that died.",
        [Edit(MODEL, "if not isinstance(held, _FROM_OUTSIDE):", "if held is not None:")],
        [TOLD + "test_what_somebody_decided_between_two_processes_is_not_of_the_first"],
    ),
    Mutant(
        "waits-die-with-their-process",
        "A sleep over a restart is drawn as cut short.",
        [
            Edit(
                CALLS,
                'cut = [call for call in self._open.values() if call.now == "work"]',
                "cut = list(self._open.values())",
            )
        ],
        [TOLD + "test_a_wait_goes_on_in_the_next_process"],
    ),
    Mutant(
        "inner-calls-are-never-over",
        "What was under way inside a call that is over seems to be under way for ever.",
        [Edit(CALLS, 'inner.about.get("outer") == event.call', "False")],
        [TOLD + "test_one_that_nobody_waits_for_and_what_was_under_way_inside_it"],
    ),
    Mutant(
        "first-records-have-no-place",
        "In a damaged log all records before the damage are drawn at one place.",
        [
            Edit(
                MODEL,
                "event.lsn != self._last_lsn + 1 or not self._index",
                "event.lsn != self._last_lsn + 1",
            )
        ],
        [TOLD + "test_damage_is_in_its_place_and_what_comes_behind_it_keeps_its_own"],
    ),
    Mutant(
        "messages-of-a-hidden-tool-are-shown",
        "What a tool returned is hidden at its call, and shown where a message refers to it.",
        [Edit(MESSAGES, 'if self._texts.hides(tool)), "")', 'if not tool), "")')],
        [TOLD + "test_a_message_that_holds_what_a_hidden_tool_returned_is_hidden"],
    ),
    Mutant(
        "indexes-count-from-what-is-shown",
        "Of a run whose beginning is not shown, other messages are struck out than were removed.",
        [Edit(MESSAGES, "max(0, at - self._older)", "max(0, at)")],
        [TOLD + "test_changes_far_behind_the_end_need_no_memory"],
    ),
    Mutant(
        "data-ends-its-element",
        "A tool result with </script> in it is markup of the page.",
        [Edit(PAGE, """for char in "<>&'\"""", """for char in ">&'\"""")],
        [TOLD + "test_no_data_is_markup"],
    ),
    Mutant(
        "names-are-markup",
        "A run id is markup in the title of the page.",
        [Edit(PAGE, "return escape(str(text)).encode", "return str(text).encode")],
        [TOLD + "test_no_data_is_markup"],
    ),
    Mutant(
        "any-script-may-run",
        "The policy of the page lets through what should ever get into it.",
        [Edit(PAGE, "script-src '{_digest(script)}'", "script-src 'unsafe-inline'")],
        [TOLD + "test_the_policy_lets_the_one_script_and_the_one_style_of_the_page_run"],
    ),
]
