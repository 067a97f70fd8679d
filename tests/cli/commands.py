"""How each command is called on the golden runs. What is registered and not here is called with
the run alone, so that a new command is tested from the beginning."""

from __future__ import annotations

from dataclasses import dataclass, field

import logdump.app

import recovery.cli.app
from tests.cli.harness import RUNS

LOGS = tuple(sorted(path.name for path in RUNS.iterdir())) if RUNS.exists() else ()
MISSING = "nowhere"
APPS = (logdump.app.app, recovery.cli.app.app)


@dataclass(frozen=True)
class How:
    """How a command is called: the words behind its name, with "{run}" for a run's id (of logdump
    its path, which is the same in the directory of the store).

    ``runs``: on which golden runs. ``variants``: other words, and on which runs those.
    ``missing``: the exit code for a run that is not there. ``elsewhere``: it has tests of its own,
    and only its help is looked at here. ``live``: it draws anew on a terminal. ``writes``: it may
    change the run. ``of_store``: it is about no one run, but about all. ``wide``: its lines
    are for programs, and as long as they are.
    """

    words: str = "{run}"
    runs: tuple[str, ...] = LOGS
    variants: dict[str, tuple[str, ...]] = field(default_factory=dict)
    missing: int = 66
    elsewhere: bool = False
    live: bool = False
    wide: bool = False
    writes: bool = False
    of_store: bool = False

    def args(self, run: str, words: str | None = None) -> list[str]:
        """The words for one run."""
        return [word.replace("{run}", run) for word in (words or self.words).split()]


# One of each kind that logs come in.
KINDS = (
    "finished",
    "torn",
    "damaged_frame",
    "damaged_header",
    "damaged_payload",
    "damaged_snapshot",
    "missing_segment",
    "foreign",
    "unsupported",
    "encrypted",
)

HOW: dict[str, How] = {
    "logdump dump": How(
        runs=KINDS,
        variants={
            "{run} --json": ("finished", "damaged_frame", "encrypted", "foreign"),
            "{run} --redact *": ("finished",),
            "{run} --errors": ("crashed_in_doubt", "failed", "damaged_frame", "encrypted"),
            "{run} --step 2..3 --kind out* --tail 3": ("finished", "damaged_frame"),
            "{run} --full --lsn 19..26": ("finished",),
            "{run} --raw --headers --bytes 32 --lsn 24..32": (
                "finished",
                "damaged_frame",
                "damaged_payload",
                "damaged_header",
                "encrypted",
            ),
            "{run} --at 2:64": ("finished", "damaged_header"),
        },
    ),
    "logdump export": How(
        runs=(
            "waiting",
            "torn",
            "damaged_frame",
            "damaged_snapshot",
            "missing_segment",
            "encrypted",
            "unsupported",
        ),
        wide=True,
    ),
    "logdump otlp": How(
        runs=("crashed_in_doubt", "failed", "forked", "damaged_early", "foreign", "encrypted"),
        variants={"{run} --content --redact card": ("waiting",)},
        wide=True,
    ),
    "logdump browse": How(elsewhere=True),  # test_browse.py
    "logdump import": How(elsewhere=True),  # tests/integration/test_logdump_export.py
    "logdump diff": How(
        "{run} {run}",
        runs=KINDS,
        variants={
            "finished {run}": LOGS,
            "--all {run}": ("forked", "finished"),
            "--json failed {run}": ("failed", "cancelled", "damaged_frame"),
            "--redact content --redact charge --redact end finished {run}": ("failed",),
            "--redact * --all origin {run}": ("forked",),
        },
    ),
    "logdump stats": How(
        variants={
            "{run} --json --by step": ("finished", "damaged_frame", "encrypted", "sleeping"),
            "{run} --by tool": ("finished", "damaged_payload"),
            "{run} --by kind": ("finished", "encrypted"),
            "{run} --by step": ("finished", "missing_segment"),
            "{run} --slowest 2 --redact *": ("finished",),
        },
    ),
    "logdump verify": How(variants={"{run} --json": LOGS}),
    "logdump repair": How(
        writes=True, variants={"{run} --apply": KINDS, "{run} --json": ("damaged_payload", "torn")}
    ),
    "logdump timeline": How(elsewhere=True),
    "recovery crashtest": How(elsewhere=True),
    "recovery worker": How(elsewhere=True),
    "recovery submit": How(elsewhere=True),
    "recovery debug": How(elsewhere=True),  # test_debug.py
    "recovery doctor": How(elsewhere=True),
    "recovery copy": How(elsewhere=True),  # test_copy.py
    "recovery export": How(elsewhere=True),  # test_redacted_export.py
    "recovery forget": How(
        "--store . --list",
        runs=("all",),
        missing=0,
        of_store=True,
        variants={"--store . ada --dry-run": ("all",)},
    ),
    "recovery gc": How(
        "--store . --older-than 1h --dry-run",
        runs=("all",),
        missing=0,
        of_store=True,
        variants={"--store . --keep 2 --state finished --dry-run --json": ("all",)},
    ),
    "recovery rm": How(
        "--store . {run} --dry-run",
        missing=66,
        variants={
            "--store . {run} --force --children --dry-run": LOGS,
        },
    ),
    "recovery runs": How(
        "--store .",
        runs=("all",),
        missing=0,
        of_store=True,
        variants={
            "--store . --sort last --limit 3": ("all",),
            "--store . --due": ("all",),
            "--store . --in-doubt --json --redact *": ("all",),
            "--store . --state waiting --match ing": ("all",),
        },
    ),
    "recovery status": How(
        "--store .",
        runs=("all",),
        missing=0,
        of_store=True,
        variants={"--store . --check --json --redact *": ("all",)},
    ),
    "recovery show": How(
        "--store . {run}",
        missing=66,
        variants={
            "--store . {run} --json": ("parked", "sleeping", "parent", "forked", "encrypted"),
            "--store . {run} --redact send_mail --redact query": ("parked", "sleeping"),
            "--store . {run} --redact *": ("crashed_in_doubt", "failed"),
        },
    ),
    "recovery checkpoints": How(
        "--store . {run}",
        missing=66,
        variants={"--store . {run} --json": ("finished", "damaged_snapshot", "sleeping")},
    ),
    "recovery resume": How(elsewhere=True),  # tests/cli/test_resume.py
    "recovery resolve": How(
        "--store . {run} 58 --retry",
        missing=66,
        writes=True,
        variants={
            "--store . {run} call_6 --outcome [250,true]": ("crashed_in_doubt", "parked"),
            "--store . {run} send_mail#58 --outcome yes --text --why seen": ("parked",),
            "--store . {run} dad5 --fail refused": ("crashed_in_doubt", "parked"),
            "--store . {run} charge#38 --retry": ("failed", "cancelled", "finished"),
        },
    ),
    "recovery retry": How("--store . {run}", missing=66, writes=True),
    "recovery approve": How(
        "--store . {run} 38 --yes",
        missing=66,
        writes=True,
        variants={"--store . {run} 38": ("waiting",)},
    ),
    "recovery deny": How(
        "--store . {run} charge#38 --why no --redact charge",
        missing=66,
        writes=True,
        runs=("waiting", "parked", "damaged_frame"),
    ),
    "recovery signal": How('--store . {run} answer {"n":1}', missing=66, writes=True),
    "recovery cancel": How("--store . {run} --yes --why enough", missing=66, writes=True),
    "recovery accept": How("--store . {run} --yes", missing=66, writes=True),
    "recovery fork": How(
        "--store . {run} new_one --at 4",
        missing=66,
        writes=True,
        variants={
            "--store . {run} finished": ("parked", "finished"),
            '--store . {run} other --at 2 --state {"plan":[]} --task "x" --who ann --json': (
                "finished",
            ),
        },
    ),
    "recovery undo": How(
        "--store . {run} --dry-run",
        missing=66,
        variants={"--store . {run} --dry-run --json": ("finished", "waiting")},
    ),
}


def registered() -> list[str]:
    """All commands of both tools."""
    return [f"{app.info.name} {one.name}" for app in APPS for one in app.registered_commands]


def how(command: str) -> How:
    """How to call it."""
    default = How("--store . {run}", missing=66) if command.startswith("recovery") else How()
    return HOW.get(command, default)
