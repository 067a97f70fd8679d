"""Values that were changed in place where a resumed run does not see it: said when it happens.

A checkpoint holds values, not objects; and a call that is served changes nothing. So three things
are lost: what a tool does to its arguments, what the agent does to its task behind a checkpoint,
and that two places of the state are one object.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from recovery._messages import Messages
from recovery._parameters import form_of
from recovery._values import UNCHANGING, digest, pack, pack_arguments, unpack
from recovery._where import call_site

if TYPE_CHECKING:
    from recovery._core import RunCore
    from recovery._identity import Identified

_logger = logging.getLogger("recovery")

SIZE_MAX = 1 << 20  # arguments of more bytes are not looked at: packing them takes milliseconds
CONTAINERS_MAX = 2000  # of a state that are looked at, in some 100 us
SHARED_MAX = 20  # that are kept in view

_told: set[str] = set()  # what was said of the tools of this process


def copied(value: Any, name: str) -> Any:
    """The value as a resumed run gets it: what is changed in it leaves the caller's as it is."""
    return value if type(value) in UNCHANGING else unpack(pack(value, name))


def tell_of_arguments(run: RunCore, made: Identified) -> None:
    """Say that a call has changed what it was given, once for each tool of a process."""
    args, kwargs = made.shown
    if UNCHANGING.issuperset(map(type, (*args, *kwargs.values()))) or made.spec.waits:
        return
    if made.spec.name in _told or len(made.packed) > SIZE_MAX:
        return
    if any(isinstance(value, Messages) for value in (*args, *kwargs.values())):
        return  # every change of which is recorded
    if pack_arguments(args, kwargs, made.spec.name) == made.packed:
        return
    _told.add(made.spec.name)
    was_args, was_kwargs = unpack(made.packed)
    form = form_of(made.spec.function)
    known = [*form.signature.parameters] if form.signature is not None else []
    known += [f"argument {at + 1}" for at in range(len(known), len(args))]
    pairs = [*zip(known, was_args, args, strict=False)]
    pairs += [(key, was_kwargs[key], kwargs[key]) for key in kwargs]
    names = [repr(name) for name, was, now in pairs if not _same(was, now)]
    _logger.warning(
        "run %s: the call of tool %s in %s has changed its argument %s in place. That is not "
        "recorded: a resumed run is served the result, and the argument stays as it was. Return "
        "what has changed, or change a copy.",
        run.run_id, made.spec.name, call_site(), " and ".join(names),
    )  # fmt: skip


def _same(was: Any, now: Any) -> bool:
    return pack_arguments((was,), {}, "") == pack_arguments((now,), {}, "")


class InPlace:
    """What of a run is looked at when checkpoints are taken."""

    def __init__(self, run: RunCore) -> None:
        self._run = run
        self._keys = -1  # of the state, when it was looked at
        self._shared: list[tuple[str, str, Any, bytes]] = []
        self._task = None if type(run.task) in UNCHANGING else pack(run.task, "task")

    def look(self) -> None:
        """A checkpoint is about to be taken."""
        state = self._run.state
        self._look_at_task(state)
        for one, other, value, known in self._shared:
            if digest(pack(value, "state")) != known:
                _logger.warning(
                    "run %s: %s and %s are one object, which was changed in place. A checkpoint "
                    "holds values: behind it they are two, and a change of one is none of the "
                    "other. Keep it in one place, and a key or an index of it in the other.",
                    self._run.run_id, one, other,
                )  # fmt: skip
                self._shared, self._keys = [], len(state)
                return
        if len(state) != self._keys:
            self._keys = len(state)
            self._shared = list(_shared(state))

    def _look_at_task(self, state: dict[str, Any]) -> None:
        task = self._run.task
        if self._task is None or pack(task, "task") == self._task:
            return
        self._task = None
        in_state = {id(value) for _, value in _containers(state, "run.state")}
        if not any(id(value) in in_state for _, value in _containers(task, "run.task")):
            _logger.warning(
                "run %s: run.task was changed in place. Behind a checkpoint it is again what the "
                "run was given. Keep what changes in run.state, such as "
                'run.state.setdefault("todo", run.task); or take no checkpoints: '
                "checkpoint_every_n=None.",
                self._run.run_id,
            )


def _shared(state: dict[str, Any]) -> Iterator[tuple[str, str, Any, bytes]]:
    """Containers that are in a state twice: where, and their digests."""
    seen: dict[int, str] = {}
    found = 0
    for path, value in _containers(state, "run.state"):
        if id(value) in seen and found < SHARED_MAX:
            found += 1
            yield seen[id(value)], path, value, digest(pack(value, path))
        seen.setdefault(id(value), path)


def _containers(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """The lists and dicts in a value, each with its place; one that is there twice, twice."""
    todo, budget = [(path, value)], CONTAINERS_MAX
    while todo and budget:
        path, value = todo.pop()
        budget -= 1
        yield path, value
        items = value.items() if isinstance(value, dict) else enumerate(value)
        todo += [(f"{path}[{key!r}]", one) for key, one in items if type(one) in (list, dict)]
