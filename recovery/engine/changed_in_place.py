"""Warns of values that were changed in place where a resumed run does not see the change.

A checkpoint holds values, not objects; and a call that is served changes nothing. So three things
are lost: changes that a tool makes to its arguments, changes that the agent makes to its task
before a checkpoint, and that two places of the state are one object.
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

SIZE_MAX = 1 << 20  # larger arguments are not examined: packing them takes milliseconds
CONTAINERS_MAX = 2000  # containers of a state that are examined, in some 100 us
SHARED_MAX = 20  # shared containers that are watched
SMALL = 2 << 10  # bytes that are packed so fast that it may be done each time
OFTEN, SELDOM = 2, 16  # larger ones are examined this many times, and then at every 16th time

_looks: Counter[str] = Counter()  # at the arguments of a tool that are not small


def warn_of_changed_arguments(run: ExecutionBase, made: Identified) -> None:
    """Warn that a call has changed its arguments, once for each tool of a process."""
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
    """Whether to examine now what takes time to examine: most changes occur in the first calls."""
    looks[what] += 1
    return looks[what] <= OFTEN or not looks[what] % SELDOM


def _packed(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Packed | None:
    """Arguments as bytes; None if they hold values that cannot be carried now. Raises nothing."""
    try:
        return pack_arguments(args, kwargs, "")
    except RefusedValueError:
        return None


def _mark(value: Any) -> bytes:
    """A digest that shows whether a value has changed; empty for values that cannot be carried."""
    packed = _packed((value,), {})
    return digest(packed) if packed is not None else b""


class InPlaceChanges:
    """The values of a run that are examined when checkpoints are taken."""

    def __init__(self, run: ExecutionBase) -> None:
        self._run = run
        task = None if type(run.task) in UNCHANGING else _packed((run.task,), {})
        self._task = digest(task) if task is not None else b""
        self._is_small = task is not None and len(task) <= SMALL
        self._looks: Counter[str] = Counter()
        self._keys: int | None = None  # of the state, when it was looked at
        self._shared: list[tuple[str, str, Any, bytes]] = []
        self._is_task_kept = True  # as it was given

    def look(self) -> None:
        """Examine the state and the task before a checkpoint is taken."""
        state = self._run.state
        self._look_at_task(state)
        for one, other, value, known in self._shared:
            if _mark(value) != known:
                _logger.warning(
                    "run %s: %s and %s are one object, which was changed in place. A checkpoint "
                    "holds values: a resumed run has two objects, and a change of one is none of "
                    "the other. Keep it in one place, and a key or an index of it in the other.",
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
                "run %s: run.task was changed in place. After a checkpoint a resumed run has the "
                "task that it was given. Keep what changes in run.state, such as "
                'run.state.setdefault("todo", run.task); or take no checkpoints: '
                "checkpoint_every_n=None.",
                self._run.run_id,
            )


def _shared(state: dict[str, Any]) -> Iterator[tuple[str, str, Any, bytes]]:
    """Containers that are in a state twice: both paths, the container, and its digest."""
    seen: dict[int, str] = {}
    found = 0
    for path, value in _containers(state, "run.state"):
        if id(value) in seen and found < SHARED_MAX:
            found += 1
            yield seen[id(value)], path, value, _mark(value)
        seen.setdefault(id(value), path)


def _containers(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """The lists and dicts in a value, each with its path; one that is there twice, twice."""
    todo, budget = [(path, value)], CONTAINERS_MAX
    while todo and budget:
        path, value = todo.pop()
        budget -= 1
        yield path, value
        items = value.items() if isinstance(value, dict) else enumerate(value)
        todo += [(f"{path}[{key!r}]", one) for key, one in items if type(one) in (list, dict)]
