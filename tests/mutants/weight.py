"""Seeded bugs in what importing and a live run take: time, and memory."""

from __future__ import annotations

from tests.mutants._mutant import Edit, Mutant

REPLAY, CORE, TALK = "recovery/_replay.py", "recovery/_core.py", "recovery/_conversation.py"
CODECS, DATACLASS = "recovery/_codecs.py", "eventlog/_dataclass.py"

GROWING = "unit/test_recovery_memory.py::test_a_run_does_not_grow_with_its_steps"
HOLDING = "unit/test_recovery_memory.py::test_a_resumed_run_holds_nothing_of_what_was_replayed"
IMPORTS, METHODS = "unit/test_imports.py::", "unit/test_dataclass.py::"

MUTANTS = [
    Mutant(
        "every-outcome-is-remembered",
        "The LSN of each outcome that was served in its turn stays in a set for ever.",
        [Edit(REPLAY, "if self._open and self._open[0][0] <= lsn:", "if True:")],
        [GROWING],
    ),
    Mutant(
        "replayed-calls-are-kept",
        "A resumed run holds the outcomes that it was served for as long as it lives.",
        [
            Edit(
                REPLAY,
                "        for one in (lsn, *self.earlier.forget(lsn)):\n",
                "        for one in ():\n",
            )
        ],
        [HOLDING],
    ),
    Mutant(
        "replayed-events-are-kept",
        "A resumed run holds all events behind its checkpoint for as long as it lives.",
        [Edit(CORE, "        history.entries = []  #", "        pass  #")],
        [HOLDING],
    ),
    Mutant(
        "values-for-messages-are-kept",
        "Outcomes that messages refer to are held when no recorded message is left.",
        [Edit(TALK, "self._history.forget_values()", "pass")],
        [HOLDING],
    ),
    Mutant(
        "restored-state-is-kept",
        "What a checkpoint restored is held beside what the run has made of it since.",
        [Edit("recovery/_loop.py", "            restored.forget()\n", "")],
        [HOLDING],
    ),
    Mutant(
        "decimals-are-known-by-type-alone",
        "A Decimal is not read in a process that has packed none.",
        [Edit(CODECS, 'later("decimal", 11, _decimals)', 'LATER["decimal"] = _decimals')],
        [IMPORTS + "test_values_are_read_where_nobody_has_imported_their_types"],
    ),
    Mutant(
        "frozen-dataclasses-can-be-changed",
        "The fields of what is said to be frozen can be assigned to.",
        [Edit(DATACLASS, "            if frozen:\n", "            if not frozen:\n")],
        [METHODS + "test_same_as_the_standard_library"],
    ),
    Mutant(
        "defaults-are-not-made",
        "The first objects of a class have nothing where a factory makes the default.",
        [Edit(DATACLASS, "one.default if made is missing else made()", "one.default")],
        [METHODS + "test_same_as_the_standard_library"],
    ),
]
