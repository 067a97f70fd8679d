"""Lists the commands, in the order of the help."""

from logdump.browse import browse
from logdump.command import Command
from logdump.commands import dump, export, import_, repair, status
from logdump.diff import diff
from logdump.otlp import otlp
from logdump.stats import stats
from logdump.timeline import timeline
from logdump.verify import verify

COMMANDS: tuple[Command, ...] = (
    status.COMMAND,
    dump.COMMAND,
    verify.COMMAND,
    repair.COMMAND,
    stats.COMMAND,
    diff.COMMAND,
    timeline.COMMAND,
    browse.COMMAND,
    export.COMMAND,
    import_.COMMAND,
    otlp.COMMAND,
)
DEFAULT = "status"
