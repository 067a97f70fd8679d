"""Seeded bugs in what is known of file systems, and in what the doctor finds."""

from __future__ import annotations

from tests.mutants._mutant import Edit, Mutant

KNOWN, FILES = "eventlog/_filesystem.py", "eventlog/_files.py"
DOCTOR, DISK = "recovery/_doctor.py", "recovery/_doctor_disk.py"
SYSTEMS, TESTS = "unit/test_filesystem.py::", "unit/test_recovery_doctor.py::"

MUTANTS = [
    Mutant(
        "mount-found-by-its-device",
        "On btrfs, and under a second mount, another file system's options are judged.",
        [Edit(KNOWN, "if mount_id and fields[0] == mount_id:", "if fields[2] == device:")],
        [SYSTEMS + "test_a_mount_is_found"],
    ),
    Mutant(
        "options-of-the-file-system-not-read",
        "Only the options of the mount are looked at: nobarrier is not seen.",
        [
            Edit(
                KNOWN,
                '[*fields[5].split(","), *rest[2].split(",")]',
                'fields[5].split(",")',
            )
        ],
        [SYSTEMS + "test_a_mount_is_found"],
    ),
    Mutant(
        "memory-taken-for-a-disk",
        "A log in tmpfs with durability power is opened without a word.",
        [Edit(KNOWN, "    if kind in MEMORY:\n", "    if not kind:\n")],
        [
            "unit/test_files.py::test_a_file_system_that_may_not_keep_the_promise_is_warned_about_once"
        ],
    ),
    Mutant(
        "warned-of-at-each-opening",
        "Each opened log warns again: a thousand runs, a thousand lines.",
        [Edit(FILES, "        _warned.add(found)\n", "        pass\n")],
        [
            "unit/test_files.py::test_a_file_system_that_may_not_keep_the_promise_is_warned_about_once"
        ],
    ),
    Mutant(
        "doctor-leaves-its-log",
        "Each look leaves a log in the store.",
        [Edit(DISK, "        files.delete(path)\n", "        pass\n")],
        [TESTS + "test_all_is_looked_at_and_nothing_is_left"],
    ),
    Mutant(
        "doctor-tries-locks-once",
        "That a second opening gets the lock as well goes unnoticed.",
        [Edit(DISK, "held = first.lock(1) and not second.lock(1)", "held = first.lock(1)")],
        [TESTS + "test_locks_that_do_not_hold_are_a_problem"],
    ),
    Mutant(
        "doctor-makes-the-store",
        "A look at a store that is not there makes it.",
        [
            Edit(
                DISK,
                "    opened = files.open_directory(place)\n",
                "    opened = files.make_directory(place + '/new')\n",
            )
        ],
        [TESTS + "test_a_store_that_is_not_made_yet_is_not_made"],
    ),
    Mutant(
        "doctor-counts-inodes-where-there-are-none",
        "On a file system without a number of inodes the doctor says that they are used up.",
        [Edit(DOCTOR, "    limited = found.f_files > 0", "    limited = found.f_files >= 0")],
        [TESTS + "test_space"],
    ),
    Mutant(
        "doctor-believes-the-clock",
        "Records from the future go unnoticed.",
        [Edit(DOCTOR, "    elif newest > now + CLOCK_SLACK_S:", "    elif newest < 0:")],
        [TESTS + "test_clock"],
    ),
    Mutant(
        "doctor-passes-damage",
        "Damaged runs are no problem: cron jobs see exit code 0.",
        [Edit(DOCTOR, '"damaged": ("problem", ', '"damaged": ("warning", ')],
        [TESTS + "test_runs_in_trouble_and_what_was_left_are_named"],
    ),
]
