"""Seeded bugs in who may write, and in what is acknowledged when."""

from __future__ import annotations

from tests.mutants._mutant import Edit, Mutant

APPENDER, OWNER = "eventlog/_appender.py", "eventlog/_owner.py"
LOG, COMMITTER, FILES = "eventlog/_log.py", "eventlog/_committer.py", "eventlog/_files.py"
LISTING, SEGMENT = "eventlog/_listing.py", "eventlog/_segment.py"

PROPERTIES = "property/test_log_properties.py::"
CRASHES = PROPERTIES + "test_a_crash_at_every_call[small]"
FAILURES = (
    PROPERTIES + "test_after_a_failed_call_the_writer_takes_no_more_and_the_log_loses_nothing"
)
RECOVERIES = PROPERTIES + "test_a_crash_in_recovery_and_in_the_recovery_of_that"
STALE = "crash/test_processes.py::test_nothing_a_writer_does_counts_once_it_has_lost_the_log"
HOSTILE = "unit/test_hostile_logs.py::"
RETENTION = "unit/test_truncate.py::"
SEEDED = "unit/test_seeded_bugs.py::"

MUTANTS = [
    Mutant(
        "no-fsync-before-ack",
        "commit() returns without a flush: a power loss takes what was acknowledged.",
        [
            Edit(
                APPENDER,
                "                    writer.file.sync()\n                    self._note",
                "                    self._note",
            )
        ],
        [CRASHES],
    ),
    Mutant(
        "ack-before-write",
        "Frames wait in a buffer while commit() acknowledges them: any death takes them.",
        [
            Edit(
                APPENDER,
                "            if self.buffered:\n",
                "            if self.buffered or self.flushed:\n",
            )
        ],
        [CRASHES],
    ),
    Mutant(
        "flush-tried-again-on-the-same-descriptor",
        "A failed flush leaves the writer usable: the next one reports success for lost pages.",
        [
            Edit(
                APPENDER,
                "                # fsyncgate: the pages may be marked clean now, and the next "
                "flush would lie.\n"
                "                self.fail(exc)\n",
                "",
            )
        ],
        [FAILURES],
    ),
    Mutant(
        "write-tried-again-after-a-failure",
        "A failed write leaves the writer usable: it writes behind half a frame, all of it lost.",
        [
            Edit(
                APPENDER,
                "        except BaseException as exc:  # a full disk, Ctrl-C between two "
                "lines: see the invariants\n"
                "            self.fail(exc)\n            raise\n        return lsn",
                "        except BaseException:\n            raise\n        return lsn",
            )
        ],
        [FAILURES],
    ),
    Mutant(
        "short-write-ignored",
        "What write() says it has written is not looked at: half a record is acknowledged.",
        [
            Edit(
                SEGMENT,
                "written = write_all(self.file, data, start, size)",
                "written = self.file.pwrite(data, start)",
            )
        ],
        [PROPERTIES + "test_a_short_write_is_completed"],
    ),
    Mutant(
        "short-write-of-a-mark-ignored",
        "Of what is no record, what write() says is not looked at: half a mark, half a header.",
        [Edit(FILES, "    while written < need:\n", "    while written < 0:\n")],
        ["unit/test_files.py::test_a_write_that_comes_to_nothing_is_an_error"],
    ),
    Mutant(
        "batch-split-over-frames",
        "A batch is appended record by record: a crash leaves the first half of it.",
        [
            Edit(
                LOG,
                "        payload = encode_payload(time_ns, batch)\n"
                "        first = self._appender.append(RECORDS, len(batch), payload)\n",
                "        parts = [encode_payload(time_ns, [one]) for one in batch]\n"
                "        first = [self._appender.append(RECORDS, 1, part) for part in parts][0]\n",
            )
        ],
        [CRASHES],
    ),
    Mutant(
        "durable-mark-never-moves",
        "The mark in frames stays where it was: damage to acknowledged records is cut silently.",
        [
            Edit(
                APPENDER,
                "marks = (lsn, self.durable.durable, self._snapshot)",
                "marks = (lsn, 0, self._snapshot)",
            )
        ],
        [PROPERTIES + "test_the_durable_mark_moves_in_frames_and_in_the_mark_file"],
    ),
    Mutant(
        "mark-file-never-written",
        "Nobody writes the mark file: the last record acknowledged has no witness.",
        [
            Edit(
                APPENDER,
                "not flushed itself: it may lag, it never leads.\n"
                "            self._write_mark(mark)\n",
                "not flushed itself: it may lag, it never leads.\n            pass\n",
            )
        ],
        [PROPERTIES + "test_the_durable_mark_moves_in_frames_and_in_the_mark_file"],
    ),
    Mutant(
        "mark-leads-the-flush",
        "The mark is written before the flush that it speaks of: a torn tail is called damage.",
        [
            Edit(
                APPENDER,
                "                    writer.file.sync()\n"
                "                    self._note_durable(mark)\n",
                "                    self._note_durable(mark)\n"
                "                    writer.file.sync()\n",
            )
        ],
        [CRASHES],
    ),
    Mutant(
        "mark-taken-after-the-flush",
        "The mark covers what was appended while the flush ran: acknowledged, and not durable.",
        [
            Edit(
                APPENDER,
                "                    self._note_durable(mark)\n",
                "                    self._note_durable(Mark(self.next_lsn - 1, self._snapshot))\n",
            )
        ],
        [SEEDED + "test_a_flush_vouches_only_for_what_was_written_before_it_began"],
    ),
    Mutant(
        "torn-tail-left",
        "Recovery appends behind a torn tail: all that comes after it is unreadable later.",
        [
            Edit(
                APPENDER,
                "                file.truncate(tail.offset)\n                _renew(file, tail)\n"
                "                writer.seal(self.durable, clean=False)\n"
                "                self._directory.sync()\n",
                "                writer.end = padded(file.size())\n"
                "                self._writer = writer\n",
            )
        ],
        [CRASHES],
    ),
    Mutant(
        "recovered-tail-not-flushed",
        "What recovery keeps is served before it is durable: a power loss takes it back.",
        [
            Edit(
                APPENDER,
                "                file.truncate(tail.offset)\n                _renew(file, tail)\n"
                "                writer.seal(self.durable, clean=False)\n"
                "                self._directory.sync()\n",
                "                file.truncate(tail.offset)\n",
            )
        ],
        [CRASHES],
    ),
    # Left out: no directory sync at the end of recovery. A segment is used only after its name is
    # durable, so the one whose name is not is empty, and the next segment's sync covers both.
    Mutant(
        "what-was-kept-is-not-written-again",
        "Recovery takes readable bytes for durable: after a failed flush they may be in memory "
        "only.",
        [
            Edit(
                APPENDER,
                "def _renew(file: File, tail: Tail) -> None:\n",
                "def _renew(file: File, tail: Tail) -> None:\n    return\n",
            )
        ],
        [FAILURES],
    ),
    Mutant(
        "recovery-rewrites-in-place",
        "Recovery writes the sound part anew over itself: a crash in it takes what was durable.",
        [
            Edit(
                APPENDER,
                "                file.truncate(tail.offset)\n",
                "                sound = file.pread(tail.offset, 0)\n"
                "                file.truncate(0)\n                write_all(file, sound, 0)\n",
            )
        ],
        [RECOVERIES],
    ),
    Mutant(
        "salt-reused-after-recovery",
        "All segments of a log share a salt: bytes cut off by a recovery can turn up as records.",
        [
            Edit(
                APPENDER,
                "            salt = self._new_salt()\n            while",
                "            salt = bytes(byte or 0xA5 for byte in self._log_id[:4])\n"
                "            while",
            )
        ],
        [SEEDED + "test_frames_of_the_segment_before_are_no_records_of_this_one"],
    ),
    Mutant(
        "salt-in-a-payload-allowed",
        "A payload may hold the segment's salt: an agent that reads its log forges frames.",
        [
            Edit(
                APPENDER,
                "if bare.find(writer.rare) >= 0 and holds(bare, writer.salt):",
                "if False:",
            )
        ],
        ["unit/test_log.py::test_a_payload_with_the_salt_in_it_goes_to_another_segment"],
    ),
    Mutant(
        "buffer-not-drained-at-close",
        "With durability none a clean close forgets what is buffered: the last records are gone.",
        [Edit(APPENDER, "        self._drain()\n        mark = Mark", "        mark = Mark")],
        ["unit/test_log.py::test_every_durability_keeps_all_at_a_clean_close"],
    ),
    Mutant(
        "roll-failure-swallowed",
        "A roll that failed leaves the writer usable: what follows goes to a segment half made.",
        [
            Edit(
                APPENDER,
                "                except BaseException as exc:\n                    self.fail(exc)\n"
                "                    raise\n"
                "                lsn = self._append(kind, count, payload)",
                "                except BaseException:\n                    raise\n"
                "                lsn = self._append(kind, count, payload)",
            )
        ],
        [FAILURES],
    ),
    Mutant(
        "committer-failure-swallowed",
        "A flush that fails behind the caller's back is logged only: close() says all is well.",
        [Edit(LOG, "            self._appender.unseen = True\n", "            pass\n")],
        ["unit/test_log.py::test_a_failure_behind_that_nobody_saw_is_raised_by_close"],
    ),
    Mutant(
        "committer-keeps-logs-alive",
        "The committer holds on to the last logs it served: their locks are never released.",
        [
            Edit(
                COMMITTER,
                "                commit_all(waiting)\n",
                "                for log in waiting:\n                    log.commit_now()\n",
            )
        ],
        ["unit/test_log.py::test_the_committer_keeps_no_log_alive"],
    ),
    Mutant(
        "committer-ends-for-ever",
        "Whatever ends the committer's thread ends it for all logs of the process.",
        [
            Edit(
                COMMITTER,
                "                self._thread, self._waiting = None, set()\n",
                "                pass\n",
            )
        ],
        ["unit/test_log.py::test_the_committer_outlives_what_ends_its_thread"],
    ),
    Mutant(
        "committer-serves-one-after-another",
        "One slow disk at a time: of a hundred logs the last waits for a hundred flushes.",
        [Edit(COMMITTER, "min(len(logs) // LOGS_PER_THREAD, THREADS - 1)", "0")],
        ["unit/test_log.py::test_many_logs_are_committed_several_at_once"],
    ),
    Mutant(
        "committer-takes-all-with-it",
        "No more threads: the committer dies of it, and nothing is flushed behind any more.",
        [Edit(COMMITTER, "except RuntimeError:", "except KeyError:")],
        ["unit/test_log.py::test_logs_are_committed_though_there_can_be_no_more_threads"],
    ),
    Mutant(
        "committer-sleeps-through-a-request",
        "A request does not wake the committer: what nobody waits for is never flushed.",
        [
            Edit(
                COMMITTER,
                "            elif len(self._waiting) == 1:\n                self._wake.notify()\n",
                "",
            )
        ],
        [SEEDED + "test_the_committer_wakes_for_every_request"],
    ),
    Mutant(
        "fenced-writer-acknowledges",
        "commit() does not look whether the log was taken over: what it acknowledges is lost.",
        [
            Edit(
                APPENDER,
                "        # Whoever has lost the log neither acknowledges nor writes over the "
                "new owner's mark.\n"
                "        self._owner.check()\n",
                "",
            )
        ],
        [STALE],
    ),
    # Left out: no look at the lock before a segment is made. A roll has just sealed the segment
    # before, which looks; and a takeover makes a segment at once, so the number is taken, which
    # makes the old owner look.
    Mutant(
        "contested-log-continued",
        "A log taken over is continued in its segment: the stuck owner's late bytes mix in.",
        [
            Edit(
                APPENDER,
                "            if tail.damaged or contested or tail.header is None:",
                "            if tail.damaged or tail.header is None:",
            ),
            Edit(
                APPENDER,
                "        if contested:\n            # Whoever",
                "        if False:\n            # Whoever",
            ),
        ],
        [
            "crash/test_processes.py::test_what_a_stopped_writer_appends_is_not_seen_before_the"
            "_new_owner_appends"
        ],
    ),
    Mutant(
        "epoch-not-raised-at-takeover",
        "The new owner writes the old epoch: the old one's marks and commits still count.",
        [
            Edit(OWNER, "content = _content(files, epoch + 1)", "content = _content(files, epoch)"),
            Edit(
                OWNER,
                "return Owner(directory, file, epoch + 1, content, contested)",
                "return Owner(directory, file, epoch, content, contested)",
            ),
        ],
        ["unit/test_owner.py::test_each_owner_has_a_higher_epoch"],
    ),
    Mutant(
        "lock-file-unlinked",
        "The owner removes the lock file when it closes: two processes can hold two of them.",
        [
            Edit(
                OWNER,
                '        """Let go of the log."""\n',
                '        """Let go of the log."""\n        self._directory.remove(LOCK_NAME)\n',
            )
        ],
        [SEEDED + "test_the_lock_file_is_the_same_for_ever"],
    ),
    Mutant(
        "lock-not-asked",
        "The lock of the present owner is not asked for: two processes append to one run.",
        [Edit(OWNER, "            free = file.lock(epoch)\n", "            free = True\n")],
        ["crash/test_processes.py::test_a_second_process_is_told_at_once_who_has_the_log"],
    ),
    Mutant(
        "epoch-read-before-the-lock",
        "An owner that came and went between reading and locking lends its epoch to the next.",
        [
            Edit(
                OWNER,
                "            if _read_epoch(file) <= epoch:\n                break\n",
                "            break\n",
            )
        ],
        [
            "unit/test_owner.py::test_an_owner_that_comes_and_goes_between_two_lines_does_not_l"
            "end_its_epoch"
        ],
    ),
    Mutant(
        "replaced-lock-file-not-noticed",
        "The owner looks into the file that it has open only: LOCK replaced, two owners commit.",
        [
            Edit(
                OWNER,
                "if self._directory.identity(LOCK_NAME) != self._identity:",
                "if False:",
            )
        ],
        ["unit/test_owner.py::test_a_lock_file_that_is_removed_under_its_owner_fences_it"],
    ),
    Mutant(
        "lost-lock-file-not-contested",
        "A lock file that knows less than the segments is trusted: a live owner's bytes mix in.",
        [
            Edit(
                OWNER,
                "        contested = _read_epoch(file) < last_epoch\n",
                "        contested = False\n",
            )
        ],
        ["unit/test_owner.py::test_a_lock_file_that_knows_less_than_the_segments_is_contested"],
    ),
    Mutant(
        "epoch-not-bounded",
        "Any number in the lock file is an epoch: a forged one makes every later claim fail.",
        [Edit(OWNER, "type(epoch) is int and 0 < epoch <= EPOCH_MAX", "type(epoch) is int")],
        [SEEDED + "test_a_forged_epoch_in_the_lock_file_is_no_obstacle"],
    ),
    Mutant(
        "fork-child-keeps-the-lock",
        "A forked child keeps the log open: the lock outlives its owner, the child can append.",
        [Edit(LOG, "        log._forked()\n", "        pass\n")],
        ["crash/test_processes.py::test_a_forked_child_cannot_append_and_does_not_keep_the_lock"],
    ),
    Mutant(
        "log-shares-a-directory",
        "A log is made in a directory of other things: it lists, and removes, what is not its own.",
        [Edit(LOG, 'if strangers and "MARK" not in strangers:', "if not strangers:")],
        ["crash/test_processes.py::test_a_directory_with_other_things_in_it_is_refused"],
    ),
    Mutant(
        "lock-leaks-when-opening-fails",
        "A failed opening leaves its lock behind: nobody can open the log until the process ends.",
        [
            Edit(
                LOG,
                "        except BaseException:\n            appender.drop()\n            raise\n",
                "        except BaseException:\n            raise\n",
            )
        ],
        [SEEDED + "test_an_opening_that_fails_leaves_the_log_to_the_next"],
    ),
    Mutant(
        "old-segments-gone-before-the-header-that-says-so",
        "Retention removes segments, then makes the header that explains it: a crash is a gap.",
        [
            Edit(
                APPENDER,
                '                    self._writer = self._new_segment(b"")\n'
                "                # A new",
                "                # A new",
            ),
            Edit(
                APPENDER,
                "                    self._directory.remove(segment_name(number))\n"
                "                self._directory.sync()\n",
                "                    self._directory.remove(segment_name(number))\n"
                "                self._directory.sync()\n"
                "                if self._writer is None:\n"
                '                    self._writer = self._new_segment(b"")\n',
            ),
        ],
        [RETENTION + "test_a_crash_at_any_call_leaves_a_log_without_gaps"],
    ),
    Mutant(
        "snapshot-not-synced-before-old-segments-go",
        "Retention does not flush what is kept: a power loss takes the snapshot, and all "
        "before it.",
        [
            Edit(
                APPENDER,
                "                    if self._writer is not None:\n"
                "                        self._seal(self._writer, clean=False)\n"
                "                    self.oldest_lsn",
                "                    self._writer = None\n                    self.oldest_lsn",
            )
        ],
        [
            RETENTION + "test_what_is_kept_is_durable_before_anything_goes",
            RETENTION + "test_a_crash_at_any_call_leaves_a_log_without_gaps",
        ],
    ),
    Mutant(
        "fenced-writer-removes-segments",
        "Retention does not look whether the log was taken over: the new owner's records go.",
        [
            Edit(
                APPENDER,
                "                # A new owner that has not seen this segment must find the "
                "old ones.\n"
                "                self._owner.check()\n",
                "",
            )
        ],
        [SEEDED + "test_a_takeover_in_the_middle_of_retention_keeps_what_the_new_owner_knows_of"],
    ),
    Mutant(
        "retention-takes-the-segment-of-the-lsn",
        "Off by one: the segment that holds the LSN to be kept is removed with those before it.",
        [
            Edit(
                LISTING,
                "for n in numbers if n < kept.number)",
                "for n in numbers[:-1] if n <= kept.number)",
            )
        ],
        [RETENTION + "test_whole_segments_go_and_all_else_stays"],
    ),
    Mutant(
        "unreadable-segment-removed",
        "Retention takes every older file: damaged evidence, and another log's segment, are gone.",
        [
            Edit(
                LISTING,
                "            if header and (header.number, header.log_id) == (number, "
                "kept.header.log_id)\n",
                "            if number\n",
            )
        ],
        [RETENTION + "test_what_cannot_be_read_is_not_removed"],
    ),
    Mutant(
        "oldest-lsn-forgotten-at-reopening",
        "A reopened log does not know what went on purpose: the next roll calls it missing.",
        [
            Edit(
                APPENDER,
                "        self.oldest_lsn, self.durable = tail.oldest_lsn, Mark(",
                "        self.durable = Mark(",
            )
        ],
        [RETENTION + "test_whole_segments_go_and_all_else_stays"],
    ),
    Mutant(
        "lock-content-shown-raw",
        "What LOCK says gets into errors as it is: who edits it writes to an operator's terminal.",
        [Edit(OWNER, "shown = {key: repr(name)[1:-1] for", "shown = {key: name for")],
        [HOSTILE + "test_what_the_lock_file_says_is_shown_without_control_characters"],
    ),
    Mutant(
        "strangers-file-removed",
        "Recovery removes every name that ends like its own: a user's file in the log is gone.",
        [Edit(APPENDER, "if is_unfinished(name):", 'if name.endswith(".new"):')],
        [HOSTILE + "test_only_our_own_unfinished_segments_are_removed"],
    ),
    Mutant(
        "renewal-reads-again",
        "What recovery writes again it reads once more: a bit read wrong once goes to the disk.",
        [
            Edit(
                APPENDER,
                "        write_all(file, frame, offset)\n",
                "        write_all(file, file.pread(len(frame), offset), offset)\n",
            )
        ],
        [
            "property/test_crash_states.py::test_a_read_that_lies_in_recovery_destroys_nothing[small]"
        ],
    ),
    Mutant(
        "renewal-in-the-last-segment",
        "Frames of one segment are renewed in the last one, which is damaged: records are gone.",
        [Edit(APPENDER, "segment_name(tail.place)", "segment_name(tail.number)")],
        ["unit/test_log.py::test_recovery_writes_into_no_segment_but_the_one_that_it_verified"],
    ),
    Mutant(
        "failed-drain-goes-on",
        "A failed write of buffered records leaves the writer at work: it seals a hole.",
        [
            Edit(
                APPENDER,
                "            try:\n                self._drain()\n"
                "            except BaseException as exc:\n                self.fail(exc)\n"
                "                raise\n",
                "            self._drain()\n",
            )
        ],
        [
            "unit/test_log.py::"
            "test_a_failed_write_of_buffered_records_fails_the_writer_whoever_asked_for_it"
        ],
    ),
    Mutant(
        "stopped-while-making-a-segment",
        "An owner that lost the log while it made a segment sees a missing file, not the loss.",
        [
            Edit(
                APPENDER,
                "            except FileNotFoundError:\n"
                "                # A new owner clears away what is in the making. If that is why, "
                "this raises.\n                self._owner.check()\n                raise\n",
                "",
            )
        ],
        [
            "integration/test_real_kernels_processes.py::"
            "test_an_owner_that_loses_the_log_while_it_makes_a_segment_is_fenced"
        ],
    ),
    Mutant(
        "footer-not-renewed",
        "A log is continued behind a footer whose flush failed: sound logs are called damaged.",
        [
            Edit(
                APPENDER,
                "                _renew(file, tail)\n                self._writer = writer\n",
                "                self._writer = writer\n",
            )
        ],
        ["unit/test_log.py::test_a_footer_whose_flush_failed_is_renewed_before_the_log_goes_on"],
    ),
]
