"""The commands, in the order in which the help has them."""

from logdump import (
    _browse,
    _diff,
    _dump,
    _export,
    _import,
    _otlp,
    _repair,
    _stats,
    _status,
    _timeline,
    _verify,
)
from logdump._command import Command

COMMANDS: tuple[Command, ...] = (
    _status.COMMAND,
    _dump.COMMAND,
    _verify.COMMAND,
    _repair.COMMAND,
    _stats.COMMAND,
    _diff.COMMAND,
    _timeline.COMMAND,
    _browse.COMMAND,
    _export.COMMAND,
    _import.COMMAND,
    _otlp.COMMAND,
)
DEFAULT = "status"
