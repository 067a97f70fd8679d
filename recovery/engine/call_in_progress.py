"""Describes a call between its intent and its outcome."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import CodeType
from typing import Any, NamedTuple

from eventlog import Packed
from recovery.agent_code.closures import Origin
from recovery.declare.spec import ToolSpec
from recovery.journal.call import Arguments, Call
from recovery.values.sealed import KeyIds


@dataclass(frozen=True, slots=True, eq=False)
class CallInProgress:
    """A call without an outcome so far.

    ``calls``: the calls around it (LSNs), itself the last. ``begun``: whether its tool may have
    been executed. ``by_stop``: it was interrupted because the run stops, and not by the agent.
    """

    spec: ToolSpec
    call: Call
    calls: tuple[int, ...]
    begun: bool = True
    by_stop: bool = False

    @property
    def in_doubt(self) -> bool:
        """Whether the agent cannot continue without knowing what became of it."""
        asks = self.spec.when_cut == "in_doubt" and self.spec.after_crash != "report"
        return self.begun and asks


class Identified(NamedTuple):
    """A call with its identity.

    ``given`` are the arguments of its function, ``shown`` the recorded arguments, ``packed`` the
    same as bytes. ``distinguishing`` holds, among the arguments shown, the values that stand for
    the object that a method belongs to. ``unkeyed`` names the class of an object that no recorded
    value distinguishes from others. ``subject``: the keys of the subject that it belongs to; the
    digest is keyed then.
    """

    spec: ToolSpec
    given: Arguments
    shown: Arguments
    packed: Packed
    digest: bytes
    call_id: str
    origin: CodeType | Origin | None = None
    distinguishing: Mapping[str, Any] = {}
    unkeyed: str = ""
    subject: KeyIds = ()
