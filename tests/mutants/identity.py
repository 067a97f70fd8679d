"""Seeded bugs: which call is which."""

from __future__ import annotations

from tests.mutants._mutant import Edit, Mutant

IDENTITY, CAPTURED = "recovery/_identity.py", "recovery/_captured.py"
PARAMETERS = "recovery/_parameters.py"
OURS = "contract/test_identity.py::"

MUTANTS = [
    Mutant(
        "what-a-partial-binds-is-no-argument",
        "A partial's arguments are not recorded: a yes to one payment begins another.",
        [Edit(IDENTITY, "    spec, given = plainly(spec, given)\n    spec", "    spec")],
        [OURS + "test_a_yes_to_a_partial_is_one_to_its_arguments"],
    ),
    Mutant(
        "captured-variables-not-compared",
        "Two closures of one name are one call: after a crash each may get the other's result.",
        [Edit(IDENTITY, "names = None if first is origin else", "names = None if first else")],
        [OURS + "test_what_cannot_be_told_apart_is_refused"],
    ),
    Mutant(
        "captured-objects-held",
        "What a function has captured is kept alive for as long as its step lasts.",
        [Edit(CAPTURED, "            return ref(value)\n", "            return [value]\n")],
        [OURS + "test_nothing_is_kept_alive_for_the_sake_of_telling_apart"],
    ),
    Mutant(
        "object-left-out-of-the-approval",
        "A yes to a payment from one account begins the same payment from another.",
        [Edit(IDENTITY, 'told = {**told, "identity": value}', 'told = {"identity": []}')],
        [OURS + "test_a_yes_to_a_method_is_one_to_its_object_and_all_its_arguments"],
    ),
    Mutant(
        "approval-binds-the-identity-alone",
        "A yes to one amount begins another, where identity= does not name the amount.",
        [Edit(IDENTITY, "        if not spec.needs_approval:\n", "        if spec.name:\n")],
        [OURS + "test_a_yes_to_a_method_is_one_to_its_object_and_all_its_arguments"],
    ),
    Mutant(
        "defaults-by-equality",
        "An argument that equals the default of another type counts as not given: 1 for True.",
        [Edit(PARAMETERS, "return type(value) is kind and bool(value == default)",
              "return bool(value == default)")],
        [OURS + "test_an_edit_that_says_something_else_stops"],
    ),
    Mutant(
        "defaults-count",
        "To pass the default of a parameter, or to add one, stops every run in flight.",
        [Edit(PARAMETERS, "if name not in self.defaults or not equals(value, self.defaults[name])",
              "if name")],
        [OURS + "test_an_edit_that_says_the_same_is_no_change"],
    ),
    Mutant(
        "recorded-arguments-not-looked-at",
        "A parameter that is redacted, or has a default, from now on stops every run in flight.",
        [Edit("recovery/_call.py", "if recorded is None and replay.has_unclaimed:",
              "if run is None:")],
        [OURS + "test_an_edit_that_says_the_same_is_no_change"],
    ),
    Mutant(
        "new-identity-for-old-runs",
        "Runs that an earlier release began do not find their calls.",
        [Edit(IDENTITY, "if run.rules < 2:", "if run.rules < 1:")],
        [OURS + "test_runs_of_the_first_rules_keep_the_identities_they_had"],
    ),
]  # fmt: skip
