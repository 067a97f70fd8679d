"""Implements ``run.state``: a dict that keeps its restored values until the loop of steps."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from copy import deepcopy
from operator import is_
from typing import Any

from recovery.values.frozen import RecordedDict
from recovery.values.sealed import Personal

_MISSING: Any = object()
# Values of these types are not checked when they are assigned: a checkpoint checks them.
_PLAIN = frozenset({str, bytes, int, float, bool, type(None), dict, list, tuple, set})


class RunState(RecordedDict[str, Any]):
    """A dict that is saved with each checkpoint. Copies of it are plain dicts.

    Before the loop of steps of a resumed run it holds the values of the checkpoint. Changes by this
    code were made, and saved, the first time, and are not made again. ``look`` is called before
    each change; ``mark`` with the key and the value of one that belongs to a subject.
    """

    __slots__ = ("_inside", "_look", "_mark", "_restored")

    def __init__(
        self,
        look: Callable[[], None] = lambda: None,
        mark: Callable[[str, Personal], Any] = lambda key, value: value,
    ) -> None:
        super().__init__()
        self._look, self._mark = look, mark
        self._restored: frozenset[str] | None = None  # keys, until the loop of steps is entered
        self._inside: Contents | None = None  # what the values hold, until then

    def restore(self, values: dict[str, Any]) -> None:
        """Hold these values, and make no change of them, until ``enter_loop``."""
        super().update(values)
        self._restored = frozenset(values)
        self._inside = Contents(values.values())

    def enter_loop(self, removed: Iterable[str] | None) -> set[str]:
        """From here on changes are made. Those made inside restored values are taken back.

        A key that the checkpoint does not have may be new. One of those in ``removed`` is not: it
        was set before the loop the first time too, and the steps have removed it. None: no key is
        new. Returns the keys that are taken out.
        """
        assert self._restored is not None and self._inside is not None
        self._inside.put_back()
        added = self.keys() - self._restored
        dropped = added if removed is None else added & {*removed}
        for key in dropped:
            super().pop(key)
        self._restored = self._inside = None
        return dropped

    def _makes(self, key: str) -> bool:
        """Whether a change of this key is made."""
        self._look()
        return self._restored is None or key not in self._restored

    # -- the methods of dict that change it

    def __setitem__(self, key: str, value: Any) -> None:
        if type(key) is not str or not key.isascii():
            _check_key(key)
        if self._makes(key):
            if type(value) is Personal:
                value = self._mark(key, value)
            if type(value) not in _PLAIN:
                _check_carried(key, value)
            super().__setitem__(key, value)

    def __delitem__(self, key: str) -> None:
        if self._makes(key):
            super().__delitem__(key)

    def setdefault(self, key: str, default: Any = None, /) -> Any:
        if key not in self:
            self[key] = default
        return self[key]

    def pop(self, key: str, default: Any = _MISSING, /) -> Any:
        value = self[key] if default is _MISSING else self.get(key, default)
        if key in self:
            del self[key]
        return value

    def popitem(self) -> tuple[str, Any]:
        if not self:
            return super().popitem()  # raises
        key = next(reversed(self))
        return key, self.pop(key)

    def clear(self) -> None:
        for key in list(self):
            del self[key]

    def update(self, *args: Any, **kwargs: Any) -> None:
        for key, value in dict(*args, **kwargs).items():
            self[key] = value

    def __ior__(self, other: Any) -> RunState:  # type: ignore[override,misc]
        self.update(other)
        return self

    def become(self, values: Any) -> None:
        """Hold these values and no others: what ``run.state = values`` does."""
        if values is self:  # `run.state |= ...` assigns the dict to itself
            return
        if not isinstance(values, Mapping):
            raise TypeError(f"run.state is a dict, not {values!r:.80}")
        new = {key: dict(self) if value is self else value for key, value in values.items()}
        self.clear()
        self.update(new)

    # -- copies

    def __copy__(self) -> dict[str, Any]:
        return dict(self)

    def __deepcopy__(self, memo: Any) -> dict[str, Any]:
        return deepcopy(dict(self), memo)

    def __reduce__(self) -> Any:
        return dict, (dict(self),)


def _check_key(key: object) -> None:
    """RefusedValueError for an object that cannot be a key in a checkpoint."""
    from recovery.history.state_delta import pack_key  # noqa: PLC0415 - which knows of this module

    pack_key(key)


def _check_carried(key: str, value: Any) -> None:
    """RefusedValueError for a value that no checkpoint can carry: a file, a lock, a client, ..."""
    from recovery.values.codec import codec_of  # noqa: PLC0415 - which know of this module
    from recovery.values.pack import pack  # noqa: PLC0415

    if codec_of(type(value)) is None:
        pack(value, f"state.{key}")


class Contents:
    """The contents of lists, dicts, sets and other objects, at any depth, to restore them."""

    def __init__(self, values: Iterable[Any]) -> None:
        self._held: list[tuple[Any, Any]] = []
        known: set[int] = set()
        to_see = [value for value in values if type(value) not in _UNCHANGING]
        while to_see:
            value = to_see.pop()
            if id(value) in known:
                continue
            known.add(id(value))
            held = _contents_of(value)
            if held is not None:
                self._held.append((value, held))
            inside = _inside(value if held is None else held)
            to_see += [one for one in inside if type(one) not in _UNCHANGING]

    def put_back(self) -> None:
        """Give each object its former contents. The objects stay the same ones."""
        for value, held in self._held:
            _put_back(value, held)


_UNCHANGING = frozenset({str, bytes, int, float, bool, type(None), complex})


def _contents_of(value: Any) -> Any:
    """A copy of what an object holds itself; None for one that cannot be changed."""
    match value:
        case list():
            return list(value)
        case dict():
            return dict(value)
        case set():
            return set(value)
        case bytearray():
            return bytes(value)
        case tuple() | frozenset():
            return None
    if _is_array(value):
        return value.copy() if value.flags.writeable else None
    fields = getattr(value, "__dict__", None)
    return dict(fields) if isinstance(fields, dict) else None


def _inside(held: Any) -> Collection[Any]:
    match held:
        case dict():
            return held.values()
        case list() | tuple() | set() | frozenset():
            return held
    return ()


def _put_back(value: Any, held: Any) -> None:
    """What still holds the same is left alone: its type may refuse any change."""
    match value:
        case dict() if not _is_same(value, held):
            value.clear()
            value.update(held)
        case list() if len(value) != len(held) or not all(map(is_, value, held)):
            value[:] = held
        case set() if value != held:
            value.clear()
            value.update(held)
        case bytearray():
            value[:] = held
        case dict() | list() | set():
            pass
        case _ if _is_array(value):
            value[...] = held
        case _ if not _is_same(value.__dict__, held):
            value.__dict__.clear()
            value.__dict__.update(held)


def _is_array(value: Any) -> bool:
    """Whether it is an array of numpy; others have flags of other kinds."""
    return hasattr(value, "__array__") and hasattr(getattr(value, "flags", None), "writeable")


def _is_same(value: dict[Any, Any], held: dict[Any, Any]) -> bool:
    return list(value) == list(held) and all(map(is_, value.values(), held.values()))
