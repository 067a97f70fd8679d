"""Seeded bugs in values: codecs, registered types, secrets."""

from __future__ import annotations

from tests.mutants._mutant import Edit, Mutant

CODED, CODECS, VALUES = "recovery/_coded.py", "recovery/_codecs.py", "recovery/_values.py"
REGISTER, NUMPY, REDACT = "recovery/_register.py", "recovery/_numpy.py", "recovery/_redact.py"
SNAPSHOTS, CALL, FAILURE = "recovery/_snapshots.py", "recovery/_call.py", "recovery/_failure.py"

TYPES = "unit/test_recovery_codecs.py::"
RUNS = "unit/test_recovery_values_in_runs.py::"
SECRETS = "unit/test_recovery_redact.py::"

MUTANTS = [
    Mutant(
        "sets-in-the-order-of-the-process",
        "Equal sets have other digests in another process: the call is not known again.",
        [Edit(CODED, "parts = sorted(_packb(part, where) for part in payload)",
              "parts = [_packb(part, where) for part in payload]")],
        [TYPES + "test_digests_are_the_same_in_every_process"],
    ),
    Mutant(
        "an-unknown-type-is-damage",
        "A run whose types are not imported is taken for damaged, its checkpoints are passed over.",
        [Edit("recovery/_errors.py", "class UnreadableValueError(RecoveryError):",
              "class UnreadableValueError(RecoveryError, ValueError):")],
        [TYPES + "test_an_unknown_name_is_an_error_that_names_it"],
    ),
    Mutant(
        "constructors-run-on-reading",
        "Reading a log calls __init__ and __post_init__, which may do anything.",
        [Edit(REGISTER, "        value = object.__new__(cls)\n        for name, part in fill",
              "        value = cls(**fill(cls, recorded, known))\n        for name, part in fill")],
        [TYPES + "test_reading_runs_no_constructor"],
    ),
    Mutant(
        "two-types-of-one-name",
        "The second type of a name takes the place of the first: its values are read as others.",
        [Edit(REGISTER, "other.kind is not None and not _is_same(other.kind, cls):",
              "other.kind is None:")],
        [TYPES + "test_a_name_is_given_once"],
    ),
    Mutant(
        "fields-dropped-in-silence",
        "A recorded field that the class has no more is left out, and nobody is told.",
        [Edit(REGISTER, "    if strange:\n", "    if not strange and len(recorded) < 0:\n")],
        [TYPES + "test_fields_that_came_and_fields_that_went"],
    ),
    Mutant(
        "attributes-lost-in-silence",
        "What a dataclass has besides its fields is gone after a crash.",
        [Edit(REGISTER, "        if more:\n", "        if more is None:\n")],
        [TYPES + "test_an_attribute_that_is_no_field_is_not_lost_in_silence"],
    ),
    Mutant(
        "mutable-values-in-messages",
        "A message holds what can be changed in place: the change is in no record.",
        [Edit(CODED, "if self._of_message and codec.freeze is None:",
              "if self._of_message and codec.atom is None:")],
        [TYPES + "test_a_message_refuses_what_can_be_changed_in_place"],
    ),
    Mutant(
        "sets-in-messages-not-frozen",
        "A set in a message can be changed in place: the change is in no record.",
        [Edit(CODECS, "freeze=FrozenSet, unordered=True", "freeze=set, unordered=True")],
        [TYPES + "test_a_message_holds_what_cannot_be_changed"],
    ),
    Mutant(
        "fold-forgotten",
        "The second half past two of a night in autumn becomes the first.",
        [Edit(CODECS, "moment = datetime(year, month, day, *clock, fold=fold)",
              "moment = datetime(year, month, day, *clock, fold=0)")],
        [TYPES + "test_edges_come_back"],
    ),
    Mutant(
        "decimals-as-the-context-has-them",
        "How a Decimal is written depends on the thread: its digest is another.",
        [Edit(CODECS, "str(value).upper().encode", "str(value).encode")],
        [TYPES + "test_a_decimal_is_recorded_alike_whatever_the_context"],
    ),
    # That the bytes of an array fit its shape need not be checked: numpy does so itself.
    Mutant(
        "booleans-that-are-none",
        "A forged array has booleans that are neither true nor false.",
        [Edit(NUMPY, "    _check(np, kind, raw)\n", "")],
        [TYPES + "test_bytes_that_make_no_sense_are_a_value_error"],
    ),
    Mutant(
        "chosen-hashes-accepted",
        "A set of tuples that all have one hash takes hours to read.",
        [Edit(CODED, "    return any(map(int.__eq__, hashes, hashes[ALIKE_MAX:]))",
              "    return len(hashes) < 0")],
        [TYPES + "test_keys_that_collide_on_purpose_are_refused"],
    ),
    Mutant(
        "zone-keys-are-paths",
        "A time zone from a log names a file, or a package to import.",
        [Edit(CODECS, '        key = data[1:].decode("ascii")\n'
              "        if not _ZONE_KEY.fullmatch(key):\n",
              '        key = data[1:].decode("ascii")\n        if not key:\n')],
        [TYPES + "test_bytes_that_make_no_sense_are_a_value_error"],
    ),
    Mutant(
        "codec-of-the-user-not-tried",
        "What decode= cannot read is recorded, and the run can never be resumed.",
        [Edit(VALUES, "    if layout.checked:\n", "    if layout.checked is None:\n")],
        [TYPES + "test_a_codec_that_cannot_read_what_it_wrote_is_refused"],
    ),
    Mutant(
        "checkpoints-verified-by-what-is-packed-again",
        "A type that gained a field breaks all checkpoints that hold a value of it.",
        [Edit(SNAPSHOTS, "{key: digest(value) for key, (value, _) in state_at.items()}",
              "{key: digest(pack(unpack(value), key)) for key, (value, _) in state_at.items()}")],
        [RUNS + "test_a_type_that_gained_a_field_does_not_break_checkpoints"],
    ),
    Mutant(
        "redacted-by-a-plain-hash",
        "A secret's digest is the same in every log: it can be looked up.",
        [Edit(REDACT, "digest_size=16, key=self._salt.encode()[:64],", "digest_size=16,")],
        [SECRETS + "test_digests_are_equal_for_equal_values_of_one_run_alone"],
    ),
    Mutant(
        "secret-in-the-traceback",
        "The recorded traceback of a tool says its password.",
        [Edit(FAILURE, 'secrets.scrub("".join(traceback.format_exception(type(exc), exc, where)))',
              '"".join(traceback.format_exception(type(exc), exc, where))')],
        [SECRETS + "test_a_secret_is_in_no_file_and_in_no_text"],
    ),
    Mutant(
        "secret-in-the-arguments-of-an-exception",
        "The recorded arguments of an exception have the password.",
        [Edit(FAILURE, "kept = secrets.scrubbed(given)", "kept = list(given)")],
        [SECRETS + "test_a_secret_is_in_no_file_and_in_no_text"],
    ),
    Mutant(
        "secret-in-the-cause",
        "What the agent gets of a redacted tool's error has the tool's frame: its local variables.",
        [Edit(CALL, "settled._replace(cause=None) if made.spec.redact else settled", "settled")],
        [SECRETS + "test_a_secret_is_in_no_file_and_in_no_text"],
    ),
    Mutant(
        "salt-not-in-the-fork",
        "Redacted calls of a run are not known again in its fork: they diverge.",
        [Edit("recovery/_fork.py", 'salt = (source.salt or source.uid) if source else ""',
              'salt = ""')],
        [SECRETS + "test_a_call_is_known_again_in_a_fork_of_a_fork"],
    ),
    Mutant(
        "placeholders-for-the-tool",
        "A tool with a redacted argument is called with the placeholder.",
        [Edit(CALL, "    run.secrets.keep(call.lsn, made.given)\n", "")],
        [SECRETS + "test_retries_in_another_process_have_the_true_arguments"],
    ),
]  # fmt: skip
