"""Seeded bugs in bytes and verdicts: frames, payloads, and what is torn or damaged."""

from __future__ import annotations

from tests.mutants._mutant import Edit, Mutant

FRAME, SCAN, RECORD = "eventlog/_frame.py", "eventlog/_scan.py", "eventlog/_record.py"

BITS = "unit/test_frame.py::test_no_flipped_bit_of_a_header_or_payload_passes"
HEADER_BITS = "unit/test_seeded_bugs.py::test_every_bit_of_a_frame_header_is_under_its_own_crc"
DAMAGE = "property/test_damage.py::"
HOSTILE = "unit/test_hostile_logs.py::"
PROPERTIES = "property/test_log_properties.py::"
CRASHES = PROPERTIES + "test_a_crash_at_every_call[small]"

MUTANTS = [
    Mutant(
        "crc-without-lsn",
        "The header's CRC leaves out the LSN: a flipped bit gives a record another's number.",
        [
            Edit(FRAME, "crc32(checked, seed)", "crc32(checked[:8] + checked[16:], seed)"),
            Edit(
                FRAME,
                "crc32(buf[at + 8 : at + FRAME_SIZE], ",
                "crc32(buf[at + 8 : at + 16] + buf[at + 24 : at + FRAME_SIZE], ",
            ),
        ],
        [HEADER_BITS],
    ),
    Mutant(
        "crc-without-length",
        "The header's CRC leaves out the length: a flipped bit there passes for a torn tail.",
        [
            Edit(FRAME, "crc32(checked, seed)", "crc32(checked[4:], seed)"),
            Edit(FRAME, "buf[at + 8 : at + FRAME_SIZE]", "buf[at + 12 : at + 48]"),
        ],
        [HEADER_BITS],
    ),
    Mutant(
        "crc-without-salt",
        "CRCs start from zero: old bytes of another segment behind a new marker are a record.",
        [
            Edit(FRAME, "    (seed,) = _CRC.unpack(salt)\n", "    seed = 0\n"),
            Edit(
                FRAME,
                "FRAME_SIZE], _CRC.unpack(salt)[0]) != header_crc",
                "FRAME_SIZE]) != header_crc",
            ),
            Edit(
                FRAME,
                "crc32(payload, _CRC.unpack(salt)[0]) == frame.crc",
                "crc32(payload) == frame.crc",
            ),
        ],
        ["unit/test_frame.py::test_a_frame_of_another_segment_does_not_pass"],
    ),
    Mutant(
        "payload-crc-not-checked",
        "A payload is believed for its sound header: half-written results are served.",
        [
            Edit(
                FRAME,
                "return payload if crc32(payload, _CRC.unpack(salt)[0]) == frame.crc else None",
                "return payload",
            )
        ],
        [BITS],
    ),
    Mutant(
        "zero-frame-valid",
        "A CRC of zero means `not computed`: preallocated space is full of frames.",
        [
            Edit(FRAME, "if marker != salt or size", "if marker not in (salt, bytes(4)) or size"),
            Edit(
                FRAME,
                "    if crc32(buf[at + 8 : at + FRAME_SIZE]",
                "    if header_crc and crc32(buf[at + 8 : at + FRAME_SIZE]",
            ),
        ],
        ["unit/test_frame.py::test_zeros_and_ones_are_no_frame"],
    ),
    Mutant(
        "length-not-bounded",
        "A length is believed whatever it is: a forged header has gigabytes read.",
        [Edit(FRAME, "marker != salt or size > PAYLOAD_SIZE_MAX", "marker != salt")],
        ["unit/test_frame.py::test_a_length_beyond_the_limit_is_no_frame"],
    ),
    Mutant(
        "frames-off-their-boundary",
        "The search ahead takes frames at any offset: bytes in a payload pass for frames.",
        [
            Edit(FRAME, "        if at % ALIGNMENT == 0:\n", "        if at >= 0:\n"),
            Edit(FRAME, "buf.find(salt, padded(at + 1))", "buf.find(salt, at + 1)"),
        ],
        ["unit/test_frame.py::test_frames_ahead_are_found_on_their_boundaries_only"],
    ),
    Mutant(
        "new-version-is-damage",
        "A segment of a newer version reads as a damaged one: an old library calls it lost.",
        [
            Edit(
                FRAME,
                "if version != VERSION or flags & ~_SEGMENT_ENCRYPTED:\n",
                "if version != VERSION:\n        return None\n"
                "    if flags & ~_SEGMENT_ENCRYPTED:\n",
            )
        ],
        ["unit/test_frame.py::test_another_version_or_flag_is_refused_by_name"],
    ),
    Mutant(
        "header-crc-not-checked",
        "A segment header is believed for its magic: a flipped bit moves its records' LSNs.",
        [
            Edit(
                FRAME,
                "if magic != SEGMENT_MAGIC or _CRC.unpack_from(buf, 60)[0] != "
                "crc32(bytes(buf[:60])):",
                "if magic != SEGMENT_MAGIC:",
            )
        ],
        ["unit/test_frame.py::test_no_flipped_bit_or_cut_of_a_segment_header_passes"],
    ),
    Mutant(
        "silent-cut-in-the-middle",
        "Recovery ends at the first bad frame: all that was acknowledged behind it is gone.",
        [Edit(SCAN, "            if lsn > known:\n", "            if lsn > 0:\n")],
        ["unit/test_scan.py::test_a_bad_frame_that_a_later_one_calls_durable_is_damage"],
    ),
    Mutant(
        "one-durable-record-too-many-cut",
        "Off by one: the last record that was acknowledged is cut as if it were torn.",
        [Edit(SCAN, "            if lsn > known:\n", "            if lsn >= known:\n")],
        ["unit/test_scan.py::test_a_bad_last_frame_is_damage_when_the_mark_file_covers_it"],
    ),
    Mutant(
        "later-frame-means-damage",
        "Any later frame vouches for those before it: honest torn tails are called damage.",
        [
            Edit(
                SCAN,
                "highest = max(highest, frame.durable)",
                "highest = max(highest, frame.lsn - 1)",
            )
        ],
        [CRASHES],
    ),
    Mutant(
        "marks-in-frames-ignored",
        "Only the mark file is asked what is durable: damage passes for a torn tail without it.",
        [
            Edit(
                SCAN,
                "max(self.mark.durable, self._called_durable(offset))",
                "self.mark.durable",
            )
        ],
        ["unit/test_scan.py::test_a_bad_frame_that_a_later_one_calls_durable_is_damage"],
    ),
    Mutant(
        "late-records-behind-a-lost-segment",
        "A new owner's segment is unreadable: what the old one wrote late is read in its place.",
        [Edit(SCAN, "if self.overruled and lsn >", "if False and lsn >")],
        ["unit/test_scan.py::test_what_may_be_late_is_damage_when_the_segment_after_it_is_lost"],
    ),
    Mutant(
        "mark-file-ignored",
        "Nobody asks the mark file: the last record acknowledged, if damaged, is cut silently.",
        [Edit(SCAN, "max(self.mark.durable, self._called", "max(0, self._called")],
        ["unit/test_scan.py::test_a_bad_last_frame_is_damage_when_the_mark_file_covers_it"],
    ),
    Mutant(
        "later-segment-vouches-for-nothing",
        "A roll makes nothing durable in the verdict: damage at a segment's end is cut silently.",
        [Edit(SCAN, "        if self.limit is not None:\n            return self.limit - 1\n", "")],
        ["unit/test_scan.py::test_a_later_segment_makes_all_before_it_durable"],
    ),
    Mutant(
        "limit-of-a-segment-ignored",
        "Records behind the first LSN of the next segment count: a fenced writer's are read.",
        [Edit(SCAN, "while self.limit is None or lsn < self.limit:", "while True:")],
        ["crash/test_processes.py::test_nothing_a_writer_does_counts_once_it_has_lost_the_log"],
    ),
    Mutant(
        "padding-not-checked",
        "Bytes between payload and next frame may be anything: flipped ones go unnoticed.",
        [Edit(SCAN, "padding = any(self.between(", "padding = bool(0 and self.between(")],
        ["unit/test_scan.py::test_padding_that_is_not_zero_is_damage_if_durable_and_torn_if_not"],
    ),
    Mutant(
        "unknown-kind-skipped",
        "A frame of a kind not known is taken for records: a newer library's log is misread.",
        [Edit(SCAN, "                    self._check_kind(frame)\n", "")],
        ["unit/test_scan.py::test_an_unknown_kind_is_not_called_damage"],
    ),
    Mutant(
        "lsn-in-a-frame-not-compared",
        "A sound frame counts wherever it stands: a repeated or stale one is a record again.",
        [
            Edit(
                SCAN,
                "            if frame is not None and frame.lsn != lsn:\n"
                "                frame = None\n",
                "",
            )
        ],
        [
            "unit/test_scan.py::test_a_repeated_frame_is_no_record",
            "unit/test_scan.py::test_a_missing_frame_is_a_gap",
        ],
    ),
    Mutant(
        "any-lost-record-is-a-snapshot",
        "A lost record passes for a lost snapshot: a run resumes without a call that it made.",
        [
            Edit(
                SCAN,
                "snapshot = found.lsn == lsn + 1 and found.snapshot == lsn",
                "snapshot = found.lsn == lsn + 1",
            )
        ],
        ["unit/test_seeded_bugs.py::test_a_lost_record_is_not_called_a_snapshot"],
    ),
    Mutant(
        "search-ahead-is-quadratic",
        "Every bad frame is searched behind anew: a hostile segment takes minutes to open.",
        [
            Edit(
                SCAN,
                "        if self._ahead is None:\n",
                "        if True:\n            self._marks = []\n",
            )
        ],
        ["unit/test_seeded_bugs.py::test_a_segment_full_of_damage_is_searched_once"],
    ),
    Mutant(
        "snapshot-digest-not-verified",
        "A snapshot is taken as it is: a state changed on disk is restored.",
        [
            Edit(
                RECORD,
                "    if digest != xxhash.xxh3_128_digest(packed):",
                "    if not digest:",
            )
        ],
        ["unit/test_record.py::test_a_snapshot_whose_digest_is_wrong_is_none"],
    ),
    Mutant(
        "batch-numbered-as-one",
        "Records of a batch get one LSN: all but one of them are read under a wrong number.",
        [
            Edit(
                RECORD,
                "Record(frame.lsn + i, kind, time_ns, body)",
                "Record(frame.lsn, kind, time_ns, body)",
            )
        ],
        ["unit/test_record.py::test_records_of_a_batch_have_lsns_in_order"],
    ),
    Mutant(
        "record-count-not-compared",
        "The payload decides how many records there are: LSNs overlap with the next frame's.",
        [Edit(RECORD, "len(flat) != 1 + 2 * frame.count or not frame.count", "len(flat) % 2 != 1")],
        ["unit/test_record.py::test_a_payload_that_is_not_what_its_header_says_has_no_records"],
    ),
    Mutant(
        "tuples-become-lists",
        "The packer is lenient: a tuple is recorded and comes back as a list after a crash.",
        [Edit(RECORD, "Packers(strict_types=True).pack, Packers()", "Packers().pack, Packers()")],
        ["unit/test_record.py::test_what_cannot_be_carried_is_refused_by_its_path"],
    ),
    Mutant(
        "forged-count-believed",
        "A frame may claim more records than it has bytes: a forged one uses up all LSNs.",
        [Edit(FRAME, "or count > size or max", "or max")],
        ["unit/test_seeded_bugs.py::test_a_frame_cannot_hold_more_records_than_bytes"],
    ),
    Mutant(
        "colliding-keys-hashed",
        "Keys whose bytes choose their hash are put in a dict: a small record takes hours.",
        [
            Edit(
                RECORD,
                "if any(isinstance(key, msgpack.Timestamp) for key, _ in pairs):",
                "if not pairs:",
            )
        ],
        [HOSTILE + "test_keys_that_collide_on_purpose_are_refused_unhashed"],
    ),
    Mutant(
        "misplaced-frame-followed",
        "Behind damage the first frame with a later LSN is followed: a copy that a disk put in a "
        "wrong place gives up all that stands between.",
        [
            Edit(
                SCAN,
                "            self._order = _in_order(list(self._frames_ahead(offset)), lsn)\n",
                "            self._order = list(self._frames_ahead(offset))\n",
            )
        ],
        [DAMAGE + "test_swapped_sectors_cost_what_was_in_them"],
    ),
    Mutant(
        "frame-put-over-a-payload-believed",
        "A frame whose payload was written over counts to its end: sound records in it are lost.",
        [
            Edit(
                SCAN,
                "if frame is not None and whole and frame.end",
                "if frame is not None and frame.end",
            )
        ],
        ["unit/test_seeded_bugs.py::test_frames_that_a_disk_put_over_a_payload_are_read_there"],
    ),
    Mutant(
        "torn-frame-passed-over",
        "A reader that skips a frame does not ask whether it is whole: it reads on behind a "
        "torn one.",
        [
            Edit(
                SCAN,
                "return durable and frame.end",
                "return frame.end",
            )
        ],
        ["unit/test_seeded_bugs.py::test_nothing_behind_a_torn_frame_is_fetched"],
    ),
    *(
        Mutant(
            f"reading-does-not-look-at-the-{what}",
            f"The loop that reads a log takes frames without a look at their {what}.",
            [Edit(FRAME, old, new)],
            [
                "unit/test_scan.py::test_the_loop_of_sound_frames_takes_nothing_that_a_closer_"
                "look_does_not"
            ],
        )
        for what, old, new in (
            ("payload", "if crc32(payload, seed) != crc or not", "if not"),
            ("header", "if crc32(buf[at + 8 : first], seed) != header_crc or count", "if count"),
            ("LSN", "marker != salt or found != lsn or last", "marker != salt or last"),
            ("padding", " or not buf.startswith(_PADDING[last & 7], last)", ""),
            ("kind", "if kind not in kinds or lsn", "if lsn"),
            ("count", "header_crc or count > size:", "header_crc:"),
            ("marks", " or durable > LSN_MAX:", ":"),
        )
    ),
    Mutant(
        "room-for-what-a-document-says",
        "An array gets its room before it is known to be there: half a gigabyte for a small one.",
        [Edit(RECORD, "object_hook=object_hook, max_array_len=_SMALL, **hooks", "**hooks")],
        ["unit/test_record.py::test_of_what_says_more_than_it_holds_little_is_made"],
    ),
    Mutant(
        "timestamps-behind-a-lone-byte-overlooked",
        "The search for timestamps ends at the first byte that looks like one: keys that collide "
        "on purpose get through.",
        [Edit(RECORD, '        at = packed.find(b"\\xff", at + 1)\n', "        return False\n")],
        ["unit/test_record.py::test_no_beginning_of_a_timestamp_is_overlooked"],
    ),
]
