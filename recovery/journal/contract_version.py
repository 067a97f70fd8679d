"""Decides under which contract between an agent's code and its record a run was begun. Pure.

Version 1: all runs from before this module. Version 2: arguments equal to a parameter's default
count as not given; calls before the loop of steps are served by tool and order; a retried visit of
a graph's node is the same call; an exception keeps any type that is loaded. A run never changes its
version.
"""

from __future__ import annotations

from eventlog.light_dataclass import light_dataclass
from recovery.values.codec import BY_NAME, BY_TYPE, REGISTERED, Codec

CURRENT = 2


@light_dataclass
class Rules:
    """The version, as a value of a type that older libraries do not know.

    So they refuse to read the run (UnreadableValueError, nothing executed) instead of misreading
    it. Each version has a name of its own, for the same reason.
    """

    version: int


def _name(version: int) -> str:
    return f"rules {version} of agent-eventlog: upgrade the package"


def _decode(version: object) -> Rules:
    if type(version) is not int or version != CURRENT:
        raise ValueError(f"{version!r} is no version of the rules")
    return Rules(version)


BY_NAME[_name(CURRENT)] = BY_TYPE[Rules] = Codec(
    REGISTERED, lambda rules: rules.version, _decode, kind=Rules, name=_name(CURRENT)
)


def version_of(recorded: object) -> int:
    """The version that a run's first record names: 1 where it names none."""
    return recorded.version if isinstance(recorded, Rules) else 1
