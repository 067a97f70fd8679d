"""Seeded bugs in the removal of runs, one by one and by retention."""

from __future__ import annotations

from tests.mutants._mutant import Edit, Mutant

LOG, OWNER, FILES = "eventlog/_removal.py", "eventlog/_owner.py", "eventlog/_files.py"
RUN, RETENTION = "recovery/_removal.py", "recovery/_retention.py"
STORE = "recovery/stores/protocol.py"

LOGS, RUNS = "unit/test_removal.py::", "unit/test_recovery_removal.py::"
RANDOM = "property/test_retention.py::"
ANY = RANDOM + "test_only_what_may_go_is_gone_and_nothing_needed"
CRASH = LOGS + "test_a_crash_in_a_removal_leaves_a_log_or_nothing"

MUTANTS = [
    Mutant(
        "opened-in-a-grave",
        "Whoever opened a log a moment before it was removed writes on, into what is deleted.",
        [Edit(OWNER, "    if directory.in_place():\n", "    if directory.path:\n")],
        [LOGS + "test_whoever_opened_the_log_before_it_was_removed_writes_nothing_into_it"],
    ),
    Mutant(
        "deleted-under-its-name",
        "A log is deleted file by file where it is: a crash leaves half of it, listed as a run.",
        [Edit(LOG, "    files.move(path, grave)\n    try:", "    grave = path\n    try:")],
        [CRASH],
    ),
    Mutant(
        "rename-not-flushed",
        "The directory's new name is not flushed: a power loss brings back a run with files gone.",
        [
            Edit(
                FILES,
                "            os.fsync(to)\n",
                "            pass\n",
            )
        ],
        ["unit/test_files.py::test_a_moved_directory_is_made_durable"],
    ),
    Mutant(
        "lock-let-go-before-the-rename",
        "The log is free while it is being removed: a process takes it up and loses its work.",
        [
            Edit(
                LOG,
                "            _discard(files, path, owner)\n        finally",
                "            owner.close()\n            _discard(files, path, None)\n"
                "        finally",
            )
        ],
        [LOGS + "test_while_a_log_is_being_removed_nobody_gets_it"],
    ),
    Mutant(
        "takeover-of-a-removal-not-noticed",
        "A log that was taken over by force while it was removed is deleted under its new owner.",
        [Edit(LOG, "            owner.check()\n", "            pass\n")],
        [LOGS + "test_a_log_that_is_taken_over_while_it_is_removed_stays"],
    ),
    Mutant(
        "removed-wherever-it-ends",
        "A run that went on since it was looked at is removed: its new work is lost.",
        [Edit(LOG, "if at not in (None, last):", "if at not in (None, last, at):")],
        [RUNS + "test_a_run_that_goes_on_between_the_look_and_the_removal_stays"],
    ),
    Mutant(
        "leftovers-deleted-in-place",
        "What a crash left is deleted though its new name may not be durable: it comes back torn.",
        [
            Edit(
                LOG,
                "        _discard(files, path, owner)\n    except",
                "        files.delete(path)\n    except",
            )
        ],
        [LOGS + "test_what_is_finished_was_made_durable_before"],
    ),
    Mutant(
        "others-files-deleted",
        "A user's own files in a run's directory go with the run.",
        [Edit(LOG, "    if others:\n", "    if not names:\n")],
        [RUNS + "test_what_is_no_run_is_not_removed"],
    ),
    Mutant(
        "links-followed",
        "A link inside a removed run is followed, and what it leads to is deleted.",
        [
            Edit(FILES, "entry.is_dir(follow_symlinks=False)) for", "entry.is_dir()) for"),
            Edit("eventlog/_directories.py", "os.O_CLOEXEC | os.O_NOFOLLOW\n", "os.O_CLOEXEC\n"),
        ],
        [LOGS + "test_links_are_deleted_and_not_followed"],
    ),
    Mutant(
        "inbox-made-without-a-run",
        "A signal to a run that was just removed makes a directory that no run can begin in.",
        [
            Edit(
                STORE,
                "                return inbox, self._check_there(run_id, inbox)\n",
                "                return inbox, 0\n",
            )
        ],
        [RUNS + "test_a_signal_to_a_run_that_was_just_removed_is_not_sent"],
    ),
    Mutant(
        "unfinished-run-removed",
        "A run that can go on is removed unasked: its calls are forgotten and made again.",
        [
            Edit(
                RUN,
                "    if force or (found.state in ENDED and not found.damage):",
                "    if force or not found.damage:",
            )
        ],
        [RUNS + "test_a_run_that_has_not_ended_is_removed_with_force_alone"],
    ),
    Mutant(
        "damaged-run-removed",
        "A damaged run is removed without force: what is sound of it is lost.",
        [Edit(RUN, "found.state in ENDED and not found.damage)", "found.state in ENDED)")],
        [RUNS + "test_a_damaged_run_is_removed_with_force_alone"],
    ),
    Mutant(
        "needed-child-removed",
        "A child run is removed though its parent may come back for it and starts it over.",
        [Edit(RUN, "    if found.parent is not None:\n        _check_parent(store, found)\n", "")],
        [RUNS + "test_a_child_whose_failure_may_be_settled_stays"],
    ),
    Mutant(
        "child-of-another-run-of-that-name",
        "A child is kept, or removed, for a run that merely has its parent's name now.",
        [Edit(RUN, 'above.uid not in ("", found.parent.uid) or ', "")],
        [RUNS + "test_a_child_of_another_run_of_the_parents_name_is_nobodys"],
    ),
    Mutant(
        "family-checked-one-by-one",
        "A parent is gone by the time that its child turns out to be held.",
        [
            Edit(
                RUN,
                "    for one in family:\n        _check(one, force)\n",
                "    _check(found, force)\n",
            )
        ],
        [RUNS + "test_when_a_child_cannot_go_nothing_goes"],
    ),
    Mutant(
        "failed-runs-go-unasked",
        "gc removes failed runs by default: nobody can resolve what made them fail any more.",
        [
            Edit(
                RETENTION,
                "    states: Sequence[State] = OVER,",
                "    states: Sequence[State] = ENDED,",
            )
        ],
        [RANDOM + "test_failed_runs_go_only_when_they_are_asked_for"],
    ),
    Mutant(
        "gc-of-damaged-runs",
        "gc removes runs whose end cannot be told because of damage.",
        [Edit(RETENTION, "one.state in states and not one.damaged]", "one.state in states]")],
        [ANY],
    ),
    Mutant(
        "gc-children-before-parents",
        "A child goes before its failed parent; the parent turns out to be held, and goes on.",
        [
            Edit(
                RETENTION,
                "            yield from with_those_above(due[one.parent])\n",
                "            pass\n",
            )
        ],
        [ANY],
    ),
    Mutant(
        "gc-of-needed-children",
        "gc removes children of runs that may go on, and that stay.",
        [
            Edit(
                RETENTION,
                "        if above is not None and above.run_id not in gone:\n            continue",
                "        if above is not None and above.run_id not in known:\n            continue",
            )
        ],
        [ANY],
    ),
    Mutant(
        "gc-of-what-an-unfinished-fork-comes-from",
        "The run that a fork was begun from goes, and the fork can never be finished.",
        [Edit(RETENTION, " and one.run_id not in sources}", "}")],
        [ANY],
    ),
    Mutant(
        "gc-keeps-the-oldest",
        "keep= keeps the oldest runs and removes the newest.",
        [
            Edit(
                RETENTION,
                "key=lambda one: (-one.ended, one.run_id))\n    sources",
                "key=lambda one: (one.ended, one.run_id))\n    sources",
            )
        ],
        [ANY],
    ),
    Mutant(
        "gc-either-limit-is-enough",
        "With keep= and older_than_s= a run goes that one of them would keep.",
        [Edit(RETENTION, "for one in ended[keep:]\n", "for one in ended\n")],
        [ANY],
    ),
    Mutant(
        "gc-leaves-what-crashes-left",
        "What interrupted removals left is never deleted.",
        [Edit(RETENTION, "        backend.sweep()\n", "        pass\n")],
        [ANY],
    ),
    Mutant(
        "dry-run-sweeps",
        "A dry run deletes what interrupted removals have left.",
        [
            Edit(
                RETENTION, "    if not dry_run:\n        backend.sweep()\n", "    backend.sweep()\n"
            )
        ],
        [RANDOM + "test_a_dry_run_changes_nothing"],
    ),
]
