"""Values that were changed in place where a resumed run does not see it: said when it happens.

A checkpoint holds values, not objects; and a call that is served changes nothing. So three things
are lost: what a tool does to its arguments, what the agent does to its task behind a checkpoint,
and that two places of the state are one object.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from eventlog.errors import RefusedValueError
from eventlog.format.record import Packed
from recovery.agent_code.call_site import call_site
from recovery.agent_code.warn_once import is_said
from recovery.declare.parameters import form_of
from recovery.journal.messages import Messages
from recovery.values.pack import UNCHANGING, pack_arguments, unpack
from recovery.values.types import digest

if TYPE_CHECKING:
    from recovery.engine.call_in_progress import Identified
    from recovery.engine.execution_base import ExecutionBase

_logger = logging.getLogger("recovery")

SIZE_MAX = 1 << 20  # arguments of more bytes are not looked at: packing them takes milliseconds
CONTAINERS_MAX = 2000  # of a state that are looked at, in some 100 us
SHARED_MAX = 20  # that are kept in view
SMALL = 2 << 10  # bytes that are packed so fast that it may be done each time
OFTEN, SELDOM = 2, 16  # what is larger is looked at so many times, and then each so many times

_looks: Counter[str] = Counter()  # at the arguments of a tool that are not small


def tell_of_arguments(run: ExecutionBase, made: Identified) -> None:
    """Say that a call has changed what it was given, once for each tool of a process."""
    args, kwargs = made.shown
    if UNCHANGING.issuperset(map(type, (*args, *kwargs.values()))) or made.spec.waits:
        return
    size = len(made.packed)
    if size > SIZE_MAX or (size > SMALL and not _is_due(_looks, made.spec.name)):
        return
    if any(isinstance(value, Messages) for value in (*args, *kwargs.values())):
        return  # every change of which is recorded
    if _packed(args, kwargs) == made.packed or is_said("arguments", made.spec.name):
        return
    was_args, was_kwargs = unpack(made.packed)
    form = form_of(made.spec.function)
    known = [*form.signature.parameters] if form.signature is not None else []
    known += [f"argument {at + 1}" for at in range(len(known), len(args))]
    pairs = [*zip(known, was_args, args, strict=False)]
    pairs += [(key, was_kwargs[key], kwargs[key]) for key in kwargs]
    names = [repr(name) for name, was, now in pairs if _packed((was,), {}) != _packed((now,), {})]
    _logger.warning(
        "run %s: the call of tool %s in %s has changed its argument %s in place. That is not "
        "recorded: a resumed run is served the result, and the argument stays as it was. Return "
        "what has changed, or change a copy.",
        run.run_id,
        made.spec.name,
        call_site(),
        " and ".join(names),
    )


def _is_due(looks: Counter[str], what: str) -> bool:
    """Whether to look now at what takes its time to look at: most of what changes does at once."""
    looks[what] += 1
    return looks[what] <= OFTEN or not looks[what] % SELDOM


def _packed(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Packed | None:
    """Arguments as bytes; None if they hold what cannot be carried by now. To look stops no run."""
    try:
        return pack_arguments(args, kwargs, "")
    except RefusedValueError:
        return None


def _mark(value: Any) -> bytes:
    """What tells whether a value is another one; empty for what cannot be carried."""
    packed = _packed((value,), {})
    return digest(packed) if packed is not None else b""


class InPlace:
    """What of a run is looked at when checkpoints are taken."""

    def __init__(self, run: ExecutionBase) -> None:
        self._run = run
        task = None if type(run.task) in UNCHANGING else _packed((run.task,), {})
        self._task = digest(task) if task is not None else b""
        self._is_small = task is not None and len(task) <= SMALL
        self._looks: Counter[str] = Counter()
        self._keys = -1  # of the state, when it was looked at
        self._shared: list[tuple[str, str, Any, bytes]] = []
        self._is_task_kept = True  # as it was given

    def look(self) -> None:
        """A checkpoint is about to be taken."""
        state = self._run.state
        self._look_at_task(state)
        for one, other, value, known in self._shared:
            if _mark(value) != known:
                _logger.warning(
                    "run %s: %s and %s are one object, which was changed in place. A checkpoint "
                    "holds values: behind it they are two, and a change of one is none of the "
                    "other. Keep it in one place, and a key or an index of it in the other.",
                    self._run.run_id,
                    one,
                    other,
                )
                self._shared, self._keys = [], len(state)
                return
        if len(state) != self._keys:
            self._keys = len(state)
            self._shared = list(_shared(state))

    def _look_at_task(self, state: dict[str, Any]) -> None:
        task = self._run.task
        if type(task) in UNCHANGING or not self._is_task_kept:
            return
        if not (self._is_small or _is_due(self._looks, "task")) or _mark(task) == self._task:
            return
        self._is_task_kept = False
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
            yield seen[id(value)], path, value, _mark(value)
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
