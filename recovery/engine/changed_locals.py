"""Warns, at the first checkpoint, of local variables that a resumed run would lose.

The source does not show everything: ``next(orders)``, ``heapq.heappop(heap)``, a list given to a
helper. So the objects in the variables of the function with the loop are examined when the loop
begins, and again at the first checkpoint of the execution. An object that was there before the
loop, and has another content, was changed in place.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from inspect import CO_OPTIMIZED
from itertools import islice
from traceback import walk_stack
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any

from recovery.agent_code.object_contents import (
    Part,
    Path,
    changed,
    contents_of,
    ids_inside,
    is_instance,
)
from recovery.journal.user_code import is_the_users

if TYPE_CHECKING:
    from recovery.engine.execution_base import ExecutionBase

CALLERS_MAX = 50
_warned: set[CodeType] = set()  # functions of this process that were warned of


class LocalsBefore:
    """The objects in the variables of a function when its loop of steps began.

    It holds the objects, and not the frame, which would keep the run and everything else alive.
    """

    def __init__(self, run: str, frame: FrameType) -> None:
        self._run, self._code, self._line = run, frame.f_code, frame.f_lineno
        self._seen: dict[str, tuple[Any, dict[Path, Part]]] = {}
        outside = frame.f_code.co_freevars
        for name, value in _locals_of(frame).items():
            # An object of a user's class that was made elsewhere is often a client, or a fake of
            # the outside world in a test.
            if name != run and not (name in outside and is_instance(value)):
                parts = contents_of(value)
                if parts:
                    self._seen[name] = (value, parts)

    @classmethod
    def of(cls, handle: object, frame: FrameType) -> LocalsBefore | None:
        """The variables of the code that holds the run by this object. None if the code is not the
        user's, or was warned of already."""
        if frame.f_code in _warned or not is_the_users(frame.f_code.co_filename):
            return None
        name = next((name for name, one in _locals_of(frame).items() if one is handle), None)
        return cls(name, frame) if name is not None else None

    def look_again(self, run: ExecutionBase, here: FrameType) -> None:
        """Log a warning of what was changed in place; ``here``: the code that takes the
        checkpoint."""
        callers = islice(walk_stack(here), CALLERS_MAX)
        frame = next((one for one, _ in callers if one.f_code is self._code), None)
        if frame is None:
            return
        found = dict(self._changed(_locals_of(frame), run))
        if found:
            from recovery.agent_code.agent_source import warn_of_changed  # noqa: PLC0415 - imports ast

            if warn_of_changed(frame, self._run, self._line, found):
                _warned.add(self._code)

    def _changed(self, now: dict[str, Any], run: ExecutionBase) -> Iterator[tuple[str, bool]]:
        """The names of changed objects, and whether the state has them."""
        inside: Container[int] | None = None
        in_state: Container[int] = ()
        for name, (value, before) in self._seen.items():
            if now.get(name) is not value:
                continue
            for path, part in changed(before, contents_of(value)):
                if inside is None:  # a checkpoint holds it, or other code manages it
                    inside = ids_inside([run.messages, run.task])
                    in_state = ids_inside([run.state])
                if id(part) in in_state or id(part) not in inside:
                    found = f"{name}.{path[0]}" if path and is_instance(value) else name
                    yield found, id(part) in in_state


def _locals_of(frame: FrameType) -> dict[str, Any]:
    """The variables of a function that is executing."""
    found = frame.f_locals
    variables = dict(found)
    if type(found) is dict and frame.f_code.co_flags & CO_OPTIMIZED:
        found.clear()  # a copy, which would keep the objects until the function ends
    return variables
