"""A call that is under way, or of which nothing is known to have become."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import CodeType
from typing import Any, NamedTuple

from eventlog import Packed
from recovery.agent_code.closures import Origin
from recovery.declare.spec import ToolSpec
from recovery.journal.call import Arguments, Call


@dataclass(frozen=True, slots=True, eq=False)
class CallInProgress:
    """A call of which nothing is known to have become yet.

    ``calls``: the calls around it (LSNs), itself the last. ``begun``: whether its tool may have
    been at work. ``by_stop``: it was cut short because the run stops, and not by the agent.
    """

    spec: ToolSpec
    call: Call
    calls: tuple[int, ...]
    begun: bool = True
    by_stop: bool = False

    @property
    def doubtful(self) -> bool:
        """Whether the agent cannot go on without knowing what became of it."""
        return self.spec.when_cut == "in_doubt" and self.spec.after_crash != "report"


class Identified(NamedTuple):
    """A call, as it is known.

    ``given`` is what its function is called with, ``shown`` what is recorded, ``packed`` the same
    as bytes. ``told`` is what stands, among the arguments shown, for the object that a method
    belongs to. ``unkeyed`` names the class of an object that nothing recorded tells from others.
    """

    spec: ToolSpec
    given: Arguments
    shown: Arguments
    packed: Packed
    digest: bytes
    call_id: str
    origin: CodeType | Origin | None = None
    told: Mapping[str, Any] = {}
    unkeyed: str = ""
