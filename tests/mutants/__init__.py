"""Seeded bugs: each must be caught by the tests. `python -m tests.mutants` tries them all.

A catalogue by layer, one module each. A bug that was found by other means joins it, and whoever
builds a feature adds the bugs that one would make in it. A patch that changes nothing a user could
notice is no mutant: it is left out, with the argument where it would stand.
"""

from __future__ import annotations

from tests.mutants import (
    attempts,
    browse,
    calls,
    children,
    commands,
    decisions,
    doctor,
    dump,
    encryption,
    files,
    forks,
    frames,
    graphs,
    hive,
    identity,
    logdump_commands,
    outside,
    progress,
    pruning,
    removal,
    repair,
    runs,
    segments,
    timeline,
    transfer,
    undo,
    values,
    weight,
    writer,
)
from tests.mutants._mutant import Edit, Mutant

__all__ = ["LAYERS", "Edit", "Mutant"]

LAYERS: dict[str, list[Mutant]] = {
    "frames": frames.MUTANTS,
    "segments": segments.MUTANTS,
    "writer": writer.MUTANTS,
    "files": files.MUTANTS,
    "repair": repair.MUTANTS,
    "encryption": encryption.MUTANTS,
    "calls": calls.MUTANTS,
    "outside": outside.MUTANTS,
    "decisions": decisions.MUTANTS,
    "runs": runs.MUTANTS,
    "attempts": attempts.MUTANTS,
    "commands": commands.MUTANTS,
    "forks": forks.MUTANTS,
    "progress": progress.MUTANTS,
    "children": children.MUTANTS,
    "graphs": graphs.MUTANTS,
    "hive": hive.MUTANTS,
    "identity": identity.MUTANTS,
    "pruning": pruning.MUTANTS,
    "removal": removal.MUTANTS,
    "doctor": doctor.MUTANTS,
    "undo": undo.MUTANTS,
    "values": values.MUTANTS,
    "weight": weight.MUTANTS,
    "transfer": transfer.MUTANTS,
    "timeline": timeline.MUTANTS,
    "logdump": [*browse.MUTANTS, *dump.MUTANTS, *logdump_commands.MUTANTS],
}
