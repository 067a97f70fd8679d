"""Seeded bugs in the repair of damaged logs."""

from __future__ import annotations

from tests.mutants._mutant import Edit, Mutant

REPAIR, LAYOUT, REWRITE, BACKUP = (
    "eventlog/repair.py", "eventlog/_layout.py", "eventlog/_rewrite.py", "eventlog/_backup.py",
)  # fmt: skip
REPAIRS = "property/test_repair.py::"
CRASHES = REPAIRS + "test_a_crash_at_every_call_leaves_all_that_was_readable_and_can_be_repaired"
FAULTS = REPAIRS + "test_every_single_fault_is_repaired"

MUTANTS = [
    Mutant(
        "backup-named-before-it-is-whole",
        "The backup has its name while it is being made: after a crash half a copy passes for one.",
        [
            Edit(BACKUP, '    unfinished = f"{backup}.part"\n', "    unfinished = backup\n"),
            Edit(BACKUP, "        files.move(unfinished, backup)\n", "        pass\n"),
        ],
        [CRASHES],
    ),
    Mutant(
        "backup-not-flushed",
        "The copies in a backup are not flushed: a power loss leaves names, and nothing in them.",
        [Edit(BACKUP, "            copy.sync()\n", "")],
        [CRASHES],
    ),
    Mutant(
        "backup-after-the-repair-began",
        "The first segment is made anew before there is a backup.",
        [
            Edit(
                REPAIR,
                "    planned = replace(_plan(reader, seen, slots), "
                "backup=back_up(files, directory.path))\n    for slot in slots:\n",
                "    planned = _plan(reader, seen, slots)\n    for slot in slots:\n"
                "        if slot is slots[-1]:\n"
                "            planned = replace(planned, backup=back_up(files, directory.path))\n",
            )
        ],
        [CRASHES],
    ),
    Mutant(
        "sound-record-dropped",
        "What stands behind the damage in its segment is lost with it.",
        [
            Edit(
                REWRITE,
                "        if not isinstance(reader.decoder.examine(slot.place, *item), str):\n"
                "            yield item\n",
                "        if not isinstance(reader.decoder.examine(slot.place, *item), str):\n"
                "            yield item\n        else:\n            return\n",
            )
        ],
        [REPAIRS + "test_a_damaged_snapshot_costs_itself"],
    ),
    Mutant(
        "loss-not-declared",
        "Placeholders are written, and no record says of which LSNs, by whom, and why.",
        [
            Edit(
                REPAIR,
                '"lost": [[loss.first_lsn, loss.last_lsn] for loss in done.lost],',
                '"lost": [],',
            )
        ],
        [FAULTS],
    ),
    Mutant(
        "interrupted-repair-forgotten",
        "A repair that died before its last record is never finished: nothing says what was lost.",
        [
            Edit(
                REPAIR,
                "return bool(self.segments or self.unfinished)",
                "return bool(self.segments)",
            )
        ],
        [CRASHES],
    ),
    Mutant(
        "replaced-before-it-is-durable",
        "The new segment has its name before it is flushed: a power loss takes old and new.",
        [
            Edit(
                REWRITE,
                "            writer.seal(Mark(self._slot.next - 1, snapshot), clean=False)\n",
                "            file.sync = lambda: None\n"
                "            writer.seal(Mark(self._slot.next - 1, snapshot), clean=False)\n",
            )
        ],
        [CRASHES],
    ),
    Mutant(
        "foreign-segment-overwritten",
        "A segment of another log is taken for one that is lost, and overwritten.",
        [Edit(LAYOUT, "        if finding.bit & NOT_A_LOG:\n", "        if False:\n")],
        [REPAIRS + "test_what_is_of_another_log_is_refused_and_not_touched"],
    ),
    Mutant(
        "not-read-back",
        "What was written is not compared: a disk that garbles it leaves a log that is worse.",
        [
            Edit(
                REWRITE,
                "            self._check(file.pread(file.size(), 0), digest.digest())\n",
                "",
            )
        ],
        [REPAIRS + "test_what_does_not_read_back_never_gets_its_name"],
    ),
    Mutant(
        "live-log-repaired",
        "The log is repaired under its writer.",
        [Edit(REPAIR, "last_epoch, takeover=False)", "last_epoch, takeover=True)")],
        [REPAIRS + "test_a_log_that_somebody_has_is_not_repaired"],
    ),
]
