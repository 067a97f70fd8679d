"""Seeded bugs in segment files and in reading them back."""

from __future__ import annotations

from tests.mutants._mutant import Edit, Mutant

SEGMENT, READER, LISTING = (
    "eventlog/_segment.py", "eventlog/_reader.py", "eventlog/_listing.py",
)  # fmt: skip

CRASHES = "property/test_log_properties.py::test_a_crash_at_every_call[small]"
RECOVERIES = "property/test_log_properties.py::test_a_crash_in_recovery_and_in_the_recovery_of_that"
DAMAGE = "property/test_damage.py::"
PIECES = "eventlog/_pieces.py"
SEEDED = "unit/test_seeded_bugs.py::"
COSTS = "unit/test_reading_costs.py::"

MUTANTS = [
    Mutant(
        "segment-named-before-its-header-is-durable",
        "A segment gets its name, then its header is flushed: a power loss leaves a name for junk.",
        [
            Edit(
                SEGMENT,
                "            file.sync()\n            directory.publish(temporary, name)\n",
                "            directory.publish(temporary, name)\n            file.sync()\n",
            )
        ],
        [
            SEEDED
            + "test_a_new_segment_is_durable_before_it_has_a_name_and_with_it_before_it_is_used"
        ],
    ),
    Mutant(
        "no-directory-sync",
        "The name of a new segment is not made durable: a power loss takes a whole segment.",
        [
            Edit(
                SEGMENT,
                "directory.publish(temporary, name)\n            directory.sync()\n",
                "directory.publish(temporary, name)\n",
            )
        ],
        [CRASHES],
    ),
    Mutant(
        "footer-before-its-records",
        "One flush for records and footer: the footer may be there and what it vouches for not.",
        [
            Edit(
                SEGMENT,
                "        # The records must be durable before a footer says so.\n"
                "        self.file.sync()\n",
                "",
            )
        ],
        [CRASHES],
    ),
    Mutant(
        "footer-not-flushed",
        "A sealed segment is not flushed at the end: what close() acknowledged may be gone.",
        [
            Edit(
                SEGMENT,
                "        self._allocated = self.end\n        self.file.sync()\n",
                "        self._allocated = self.end\n",
            )
        ],
        [SEEDED + "test_a_clean_close_is_one_after_a_power_loss_too"],
    ),
    Mutant(
        "sealed-segment-not-trimmed",
        "Zeros stay behind the footer: it is never found, so every opening scans, and disk is "
        "lost.",
        [
            Edit(
                SEGMENT,
                "        self.file.truncate(self.end)\n        self._allocated",
                "        self._allocated",
            )
        ],
        ["unit/test_segment.py::test_space_ahead_is_zeros_and_is_trimmed_at_close"],
    ),
    Mutant(
        "footer-believed-without-digest",
        "A footer is believed unread: a log is opened as sound though it was damaged since.",
        [
            Edit(
                SEGMENT,
                "return bool(digest.digest() == footer.digest)",
                "return True",
            )
        ],
        [SEEDED + "test_damage_to_a_closed_log_is_reported_when_it_is_opened"],
    ),
    Mutant(
        "index-off-by-one",
        "The index leads to the entry behind: a read from the middle begins too late.",
        [
            Edit(
                SEGMENT,
                "        return self.index[after - 1], ends[0]\n",
                "        return self.index[min(after, len(self.index) - 1)], ends[0]\n",
            )
        ],
        ["unit/test_segment.py::test_the_index_leads_near_every_record"],
    ),
    Mutant(
        "torn-mark-believed",
        "The mark file's CRC is not looked at: a torn one calls what never was durable lost.",
        [
            Edit(
                SEGMENT,
                'if len(crc) != 4 or crc32(checked).to_bytes(4, "little") != crc:',
                "if len(crc) != 4:",
            )
        ],
        ["unit/test_segment.py::test_the_mark_file_is_read_as_it_was_written_or_not_at_all"],
    ),
    Mutant(
        "no-space-ahead",
        "The file grows with each record: every commit pays for a journal commit as well.",
        [
            Edit(
                SEGMENT,
                "        if end > self._allocated and self._preallocate:\n",
                "        if not self._preallocate:\n",
            )
        ],
        ["unit/test_segment.py::test_space_ahead_is_zeros_and_is_trimmed_at_close"],
    ),
    Mutant(
        "mark-of-an-older-epoch-believed",
        "A mark that a fenced writer wrote late counts: sound records of the new owner read as "
        "lost.",
        [
            Edit(
                LISTING,
                "last is not None and found[1] < last.epoch:",
                "last is not None and found[1] < 0:",
            )
        ],
        [
            "unit/test_reader.py::test_a_mark_that_a_writer_wrote_after_it_had_lost_the_log_doe"
            "s_not_count"
        ],
    ),
    Mutant(
        "one-sound-record-too-many-cut",
        "The torn tail begins at the last whole frame: an acknowledged record goes with it.",
        [
            Edit(
                READER,
                "            elif isinstance(item, End):\n                end = item\n",
                "            elif isinstance(item, End):\n                end = item\n"
                "                if item.torn_size and frames:\n"
                "                    last = frames[-1]\n"
                "                    end = replace(item, offset=last.offset, next_lsn=last.lsn)\n",
            )
        ],
        [CRASHES],
    ),
    Mutant(
        "reader-raises-no-damage",
        "Damage that nobody asked for is dropped: a reader goes on as if nothing were lost.",
        [
            Edit(
                READER,
                "report = on_damage or self._raise",
                "report = on_damage or (lambda damage: None)",
            )
        ],
        ["unit/test_reader.py::test_damage_is_raised_where_it_is_reached"],
    ),
    Mutant(
        "follower-skips-the-end-of-a-segment-at-a-roll",
        "A follower leaves a segment as soon as there is a later one: its last records are missed.",
        [
            Edit(
                READER,
                "            if place.number < position.number:\n                continue\n",
                "            if place.number < position.number or (\n"
                "                place.number == position.number and place.limit is not None\n"
                "            ):\n                continue\n",
            )
        ],
        [SEEDED + "test_a_follower_reads_the_end_of_a_segment_that_was_rolled_meanwhile"],
    ),
    Mutant(
        "missing-segment-not-reported",
        "A segment that is gone is read over: its records are lost without a word.",
        [
            Edit(
                READER,
                "                yield _missing(",
                "                _missing(",
            )
        ],
        ["crash/test_processes.py::test_a_wrong_segment_is_reported_with_the_lsns_lost"],
    ),
    Mutant(
        "segment-of-another-log-read",
        "A segment is not asked whose it is: another run's records are served as this one's.",
        [
            Edit(
                LISTING,
                "header is not None and (header.number, header.log_id) == (number, log_id):\n",
                "header is not None and header.number == number:\n",
            )
        ],
        ["crash/test_processes.py::test_a_wrong_segment_is_reported_with_the_lsns_lost"],
    ),
    Mutant(
        "damage-to-the-newest-snapshot-ends-the-search",
        "The newest snapshot is the one by position: if it is damaged, there is none.",
        [
            Edit(
                READER,
                "                        if on_damage is not None:\n"
                "                            on_damage(item)\n",
                "                        if on_damage is not None:\n"
                "                            on_damage(item)\n"
                "                        return\n",
            )
        ],
        [
            "unit/test_reader.py::test_a_damaged_newest_snapshot_is_reported_and_an_earlier_one"
            "_stands_in"
        ],
    ),
    Mutant(
        "oldest-snapshot-first",
        "Snapshots of a segment come in the order of the log: a run goes back to an old one.",
        [Edit(READER, "yield from reversed(found)", "yield from found")],
        [SEEDED + "test_the_newest_of_the_snapshots_in_a_segment_comes_first"],
    ),
    Mutant(
        "half-read-page-called-damage",
        "A reader beside a writer does not look twice: a page read too early is called damage.",
        [
            Edit(
                READER,
                "if item.offset >= position.offset and item.first_lsn > vouched:",
                "if False:",
            )
        ],
        [SEEDED + "test_a_page_read_before_the_writer_had_filled_it_is_read_again"],
    ),
    Mutant(
        "listing-before-mark",
        "The mark is read after the listing: it vouches for what a roll put elsewhere since.",
        [
            Edit(
                LISTING,
                "        found = read_mark(self._directory)\n        numbers = self.numbers()\n"
                "        if not numbers and",
                "        numbers = self.numbers()\n        found = read_mark(self._directory)\n"
                "        if not numbers and",
            )
        ],
        ["unit/test_reader.py::test_a_roll_between_two_readings_is_not_damage"],
    ),
    Mutant(
        "epoch-of-the-oldest-segment",
        "The epoch is taken from the oldest segment: without its lock file a log reuses epochs.",
        [
            Edit(
                LISTING,
                "reversed(self.numbers()))\n        return next((header.epoch",
                "self.numbers())\n        return next((header.epoch",
            )
        ],
        [SEEDED + "test_epochs_go_up_though_the_lock_file_is_lost"],
    ),
    Mutant(
        "clean-footer-outweighs-the-mark",
        "A footer is believed though the mark knows of later records: these are lost unsaid.",
        [
            Edit(
                READER,
                "if footer is not None and whole and footer.next_lsn > mark.durable:",
                "if footer is not None and whole:",
            )
        ],
        [SEEDED + "test_an_older_version_of_a_closed_segment_is_reported"],
    ),
    Mutant(
        "footer-not-asked-for-the-salt",
        "A segment whose first sector is gone is given up: its other records are lost too.",
        [
            Edit(
                SEGMENT,
                "    if start is not None or len(buf) < TRAILER_SIZE:\n",
                "    if True:\n",
            )
        ],
        [SEEDED + "test_a_sealed_segment_without_its_first_sector_is_read_by_its_footer"],
    ),
    Mutant(
        "mark-of-another-log-not-reported",
        "A mark file of another log is dropped in silence: damage that ours covered goes unsaid.",
        [
            Edit(
                LISTING,
                "                place, exchanged = _exchanged(place), False\n",
                "                pass\n",
            )
        ],
        [DAMAGE + "test_a_mark_of_another_log_says_so_and_loses_nothing"],
    ),
    Mutant(
        "late-segment-decides",
        "Halving looks at the next segment only: records of an owner that had lost the log are "
        "read in the place of those that count.",
        [
            Edit(
                LISTING,
                "        near = numbers[max(0, low - 1) : low + 2]\n",
                "        near = numbers[max(0, low - 1) : low + 1]\n",
            )
        ],
        [COSTS + "test_halving_finds_the_segment_that_walking_back_finds"],
    ),
    Mutant(
        "damaged-footer-loses-records",
        "What the index does not lead to is not looked for: a flipped bit in it loses records.",
        [
            Edit(
                READER,
                "            if picked is not None:\n                return picked\n",
                "            return picked or {}\n",
            )
        ],
        [COSTS + "test_where_the_index_does_not_lead_a_scan_does"],
    ),
    Mutant(
        "newest-snapshot-by-way-of-all-segments",
        "The header of each segment is read before the newest snapshot is looked for.",
        [
            Edit(
                READER,
                "        mark, places = self.listing.back()\n",
                "        mark, found = self.listing.look(1)\n        places = iter(found[::-1])\n",
            )
        ],
        [COSTS + "test_to_resume_costs_the_tail_whatever_the_history"],
    ),
    Mutant(
        "records-by-way-of-all-segments",
        "The header of each segment behind a record is read before it is looked for.",
        [
            Edit(
                READER,
                "        mark, places = self.listing.holding(lsns)\n",
                "        mark, places = self.listing.look(min(lsns))\n",
            )
        ],
        [COSTS + "test_to_resume_costs_the_tail_whatever_the_history"],
    ),
    Mutant(
        "older-snapshots-of-a-segment-forgotten",
        "Only the snapshot that a footer names is found: without it a run begins anew.",
        [
            Edit(
                READER,
                "            yield from self._scanned(place, mark, before)\n",
                "            if sealed is None:\n"
                "                yield from self._scanned(place, mark, before)\n",
            )
        ],
        [COSTS + "test_of_a_large_segment_only_a_stretch_is_read"],
    ),
    Mutant(
        "last-segment-in-pieces",
        "The last segment is read while its reader goes on: what an owner that has lost the log "
        "writes late is read as if it counted.",
        [
            Edit(
                PIECES,
                "place.header is None or place.limit is None or",
                "place.header is None or",
            ),
            Edit(PIECES, "(offset, lsn), place.limit,", "(offset, lsn), place.limit or 1 << 64,"),
        ],
        [COSTS + "test_what_a_lost_owner_writes_while_a_reader_is_at_it_is_not_read"],
    ),
    Mutant(
        "digest-of-a-part",
        "What was read in pieces is left out of the digest: sound segments are called changed.",
        [Edit(PIECES, "            passed(buf[: offset - begin])\n", "")],
        ["unit/test_dump.py::test_sound_log_has_no_findings"],
    ),
]
