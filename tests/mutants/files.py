"""Seeded bugs in the system calls: what no simulated disk can show."""

from __future__ import annotations

from tests.mutants._mutant import Edit, Mutant

FILES, DIRECTORIES = "eventlog/_files.py", "eventlog/_directories.py"
FILE_STORE, STORE = "recovery/stores/file.py", "recovery/stores/protocol.py"

PROCESSES = "crash/test_processes.py::"
SEEDED = "unit/test_seeded_bugs.py::"
FOREIGN = PROCESSES + "test_what_is_not_a_file_of_ones_own_is_refused"

MUTANTS = [
    Mutant(
        "parent-directory-not-synced",
        "The log's own directory is made and its parent not flushed: a power loss takes the log.",
        [
            Edit(
                DIRECTORIES,
                "        if made or _is_empty(inside):\n",
                "        if _is_empty(inside) and not made:\n",
            )
        ],
        ["unit/test_files.py::test_new_directories_are_made_durable"],
    ),
    Mutant(
        "half-made-directory-trusted",
        "An empty directory is taken for durable: its maker may have died before the flush.",
        [
            Edit(
                DIRECTORIES,
                "        if made or _is_empty(inside):\n",
                "        if made:\n",
            )
        ],
        ["unit/test_files.py::test_new_directories_are_made_durable"],
    ),
    Mutant(
        "no-flush-of-files",
        "sync() of a file asks the kernel for nothing: power losses take acknowledged records.",
        [Edit(FILES, "            os.fdatasync(self._fd)\n", "            pass\n")],
        [SEEDED + "test_a_commit_is_a_write_then_a_flush_then_the_mark"],
    ),
    Mutant(
        "no-flush-of-directories",
        "sync() of a directory asks the kernel for nothing: power losses take whole segments.",
        [Edit(FILES, "            os.fsync(here.number)\n", "            pass\n")],
        [
            SEEDED
            + "test_a_new_segment_is_durable_before_it_has_a_name_and_with_it_before_it_is_used"
        ],
    ),
    Mutant(
        "flush-retried-by-the-file",
        "A failed flush is tried once more: the kernel has dropped the pages and reports success.",
        [
            Edit(
                FILES,
                "                os.fdatasync(self._fd)\n",
                "                try:\n                    os.fdatasync(self._fd)\n"
                "                except OSError:\n                    os.fdatasync(self._fd)\n",
            )
        ],
        [SEEDED + "test_a_flush_that_failed_is_not_tried_again"],
    ),
    Mutant(
        "flush-error-swallowed",
        "A flush that the kernel refused is logged and forgotten: commit() acknowledges.",
        [
            Edit(
                FILES,
                "                os.fdatasync(self._fd)\n",
                "                with contextlib.suppress(OSError):\n"
                "                    os.fdatasync(self._fd)\n",
            )
        ],
        [SEEDED + "test_a_flush_that_failed_is_not_tried_again"],
    ),
    Mutant(
        "write-reports-what-was-asked",
        "A write is said to be whole: a disk that fills up leaves half a record, acknowledged.",
        [
            Edit(
                FILES,
                "            return os.pwrite(self._fd, data, offset)\n",
                "            return os.pwrite(self._fd, data, offset) and len(data)\n",
            )
        ],
        [SEEDED + "test_a_short_write_of_the_kernel_is_gone_on_with"],
    ),
    Mutant(
        "short-read-taken-for-the-end",
        "One read() is taken for all there is: a short one cuts acknowledged records off.",
        [
            Edit(
                FILES,
                "            data += part\n",
                "            break\n",
            )
        ],
        [SEEDED + "test_a_short_read_of_the_kernel_is_gone_on_with"],
    ),
    Mutant(
        "name-given-by-rename",
        "A segment gets its name by rename: a late owner replaces the new owner's segment.",
        [
            Edit(
                FILES,
                "            os.link(temporary, name, src_dir_fd=fd, dst_dir_fd=fd)\n",
                "            os.rename(temporary, name, src_dir_fd=fd, dst_dir_fd=fd)\n"
                "            os.open(temporary, os.O_CREAT, dir_fd=fd)\n",
            )
        ],
        ["unit/test_files.py::test_names"],
    ),
    Mutant(
        "rename-without-looking",
        "Where there are no hard links a rename replaces: a late owner takes a segment away.",
        [
            Edit(
                FILES,
                "            if self.identity(name) is not None:\n",
                "            if False:\n",
            )
        ],
        [SEEDED + "test_without_hard_links_a_name_is_not_taken_twice"],
    ),
    Mutant(
        "symlink-followed",
        "A link in a log's directory is followed: whoever put it there has another file written.",
        [
            Edit(
                FILES,
                "os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK",
                "os.O_CLOEXEC | os.O_NONBLOCK",
            )
        ],
        [FOREIGN],
    ),
    Mutant(
        "waits-for-a-pipe",
        "Opening a FIFO waits for its other end: whoever put it there stops every recovery.",
        [
            Edit(
                FILES,
                "os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK",
                "os.O_CLOEXEC | os.O_NOFOLLOW",
            )
        ],
        [SEEDED + "test_a_pipe_in_a_log_stops_nobody"],
    ),
    Mutant(
        "device-read",
        "What is no regular file is read all the same: a device node feeds the log.",
        [
            Edit(
                FILES,
                "        if not stat.S_ISREG(found.st_mode):\n",
                "        if stat.S_ISDIR(found.st_mode):\n",
            )
        ],
        [FOREIGN],
    ),
    Mutant(
        "hard-link-written-to",
        "A file with another name is written to: recovery cuts a copy that somebody kept.",
        [Edit(FILES, "        if write and found.st_nlink > 1:\n", "        if False:\n")],
        [FOREIGN],
    ),
    Mutant(
        "permission-0644",
        "Segments are readable by all: other users read an agent's conversations.",
        [
            Edit(
                FILES,
                "os.open(name, flags, 0o600, dir_fd=here.number)",
                "os.open(name, flags, 0o644, dir_fd=here.number)",
            )
        ],
        [PROCESSES + "test_only_the_owner_may_read"],
    ),
    Mutant(
        "directory-0755",
        "A log's directory can be listed by all: run ids and sizes are public.",
        [Edit(DIRECTORIES, "os.mkdir(name, 0o700, dir_fd=fd)", "os.mkdir(name, 0o755, dir_fd=fd)")],
        [PROCESSES + "test_only_the_owner_may_read"],
    ),
    Mutant(
        "lock-of-the-process",
        "The lock is the process's, not the open file's: two logs in a process both own the run.",
        [
            Edit(
                FILES,
                'getattr(fcntl, "F_OFD_SETLK", None)  # Linux',
                'getattr(fcntl, "F_SETLK", None)  # Linux',
            )
        ],
        [PROCESSES + "test_an_owner_in_the_same_process_is_an_owner"],
    ),
    Mutant(
        "lock-error-is-a-lock",
        "A lock that cannot be had for any reason counts as had: two owners on a full lock table.",
        [
            Edit(
                FILES,
                "            if exc.errno in (errno.EACCES, errno.EAGAIN):\n"
                "                return False\n            raise\n",
                "            return exc.errno not in (errno.EACCES, errno.EAGAIN)\n",
            )
        ],
        [SEEDED + "test_a_lock_that_fails_is_an_error"],
    ),
    Mutant(
        "descriptor-closed-twice",
        "Closing twice closes whatever has the number by then: another run's log, or a socket.",
        [
            Edit(
                FILES,
                "        fd, self._fd = self._fd, -1  # closing twice must not close what has "
                "the number by then\n",
                "        fd = self._fd\n",
            )
        ],
        [SEEDED + "test_closing_twice_closes_nothing_else"],
    ),
    Mutant(
        "network-file-system-accepted",
        "Power durability is promised on NFS: flushes and locks there do not keep it.",
        [Edit(FILES, '    if found.level == "refused":\n', "    if not found:\n")],
        ["unit/test_files.py::test_a_network_file_system_is_refused_by_name"],
    ),
    Mutant(
        "run-directory-is-a-symlink",
        "A run's directory may be a link: its log is written wherever that leads.",
        [Edit(FILE_STORE, "OSFiles(beneath=root)", "OSFiles()")],
        [
            "unit/test_recovery_checkpoint_store.py::test_a_run_directory_that_is_a_symlink_is_"
            "refused"
        ],
    ),
    Mutant(
        "run-id-becomes-a-path",
        "A run id is not checked: `../../x` is written outside of the store.",
        [
            Edit(
                STORE,
                "    if not RUN_ID.fullmatch(run_id):\n        raise",
                "    if not run_id:\n        raise",
            )
        ],
        [
            "unit/test_recovery_checkpoint_store.py::test_a_run_id_that_is_no_name_of_a_log_is_"
            "refused"
        ],
    ),
]
