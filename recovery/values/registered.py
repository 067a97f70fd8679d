"""Registers users' types, whose values are recorded under the registered name."""

from __future__ import annotations

import dataclasses
import enum
import functools
import sys
import threading
from collections.abc import Callable
from typing import Any, TypeVar, overload

from recovery.errors import UnreadableValueError
from recovery.values.codec import BY_NAME, BY_TYPE, REGISTERED, Codec, as_it_is, codec_of

T = TypeVar("T")
NAME_SIZE_MAX = 200

_lock = threading.Lock()


@overload
def register(cls: type[T], /) -> type[T]: ...


@overload
def register(
    cls: type[T],
    /,
    *,
    name: str | None = None,
    encode: Callable[[T], Any] | None = None,
    decode: Callable[[Any], T] | None = None,
    frozen: bool = False,
) -> type[T]: ...


@overload
def register(
    *,
    name: str | None = None,
    encode: Callable[[Any], Any] | None = None,
    decode: Callable[[Any], Any] | None = None,
    frozen: bool = False,
) -> Callable[[type[T]], type[T]]: ...


def register(
    cls: type[Any] | None = None,
    /,
    *,
    name: str | None = None,
    encode: Callable[[Any], Any] | None = None,
    decode: Callable[[Any], Any] | None = None,
    frozen: bool = False,
) -> Any:
    """Let values of a type be recorded: a function, and a decorator of classes. Returns the class.

    Dataclasses, enums, NamedTuples and Pydantic models need only this. Any other type needs
    ``encode``, from a value to one that can be recorded, and ``decode``, back. The log stores
    ``name`` (by default the class's own). When a log is read, only registered names are searched.
    So register a type before a run that has values of it is resumed, and keep the name when the
    class is renamed. Subclasses need a registration of their own.

    A field that is not in the record takes its default. A field that only the record has, or that
    has neither value nor default, raises UnreadableValueError. ``decode`` alone, of a dict of the
    recorded fields, reads records of an older version of the class. ``frozen`` promises that a
    value of a type with ``encode`` is immutable, so that messages may hold it.

    Applies to the whole process; thread-safe. ValueError when another type has the name, TypeError
    for a class that cannot be registered like this. A class that is defined again, by a reload or
    a notebook's cell, replaces the old one.
    """
    if cls is None:
        return functools.partial(register, name=name, encode=encode, decode=decode, frozen=frozen)
    if not isinstance(cls, type):
        raise TypeError(f"register is for classes, not {cls!r}")
    named = name or cls.__qualname__.rpartition("<locals>.")[2]
    if not named.isprintable() or len(named) > NAME_SIZE_MAX:
        raise ValueError(f"a name has up to {NAME_SIZE_MAX} printable characters: {named!r:.80}")
    codec = _codec(cls, named, encode, decode, frozen)
    with _lock:
        _add(cls, codec)
    return cls


def _add(cls: type[Any], codec: Codec) -> None:
    other = BY_NAME.get(codec.name)
    if other is not None and other.kind is not None and not _is_same(other.kind, cls):
        raise ValueError(
            f"{_where(other.kind)} is registered as {codec.name!r} already: give {_where(cls)} "
            "another name=, and keep it for good"
        )
    own = codec_of(cls)
    if own is not None and own.name != codec.name and not own.declared:
        known = f"is registered as {own.name!r}" if own.name else "needs no registration"
        raise ValueError(f"{_where(cls)} {known}")
    # By type first: what is written must be readable.
    BY_NAME[codec.name] = codec
    BY_TYPE[cls] = codec


def _is_same(old: type[Any], new: type[Any]) -> bool:
    return old is new or _where(old) == _where(new)


def _where(cls: type[Any]) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def _codec(
    cls: type[Any],
    name: str,
    encode: Callable[[Any], Any] | None,
    decode: Callable[[Any], Any] | None,
    frozen: bool,
) -> Codec:
    if encode is not None:
        if decode is None:
            raise TypeError("encode= needs decode=, which makes the value again")
        freeze = as_it_is if frozen else None
        return Codec(REGISTERED, encode, decode, freeze=freeze, kind=cls, name=name, checked=True)
    if frozen:
        raise TypeError("frozen= is for types with encode= and decode=")
    own = codec_for(cls, name)
    if own is None:
        raise TypeError(
            f"{_where(cls)} is no dataclass, enum, NamedTuple or Pydantic model: give encode= and "
            "decode="
        )
    return own if decode is None else dataclasses.replace(own, decode=decode, checked=True)


def codec_for(cls: type[Any], name: str) -> Codec | None:
    """The codec of a type that needs only its name; None for any other."""
    found = _own_codec(cls)
    if found is None:
        return None
    encode, decode, freezes = found
    freeze = as_it_is if freezes else None
    return Codec(REGISTERED, encode, decode, freeze=freeze, kind=cls, name=name)


_Own = tuple[Callable[[Any], Any], Callable[[Any], Any], bool]


def _own_codec(cls: type[Any]) -> _Own | None:
    """encode, decode, and whether a value is immutable; None for other kinds of classes."""
    pydantic = sys.modules.get("pydantic")
    if issubclass(cls, enum.Enum):
        return _of_enum(cls)
    if pydantic is not None and issubclass(cls, pydantic.BaseModel):
        return _of_model(cls)
    if issubclass(cls, tuple) and hasattr(cls, "_fields"):
        return _of_named_tuple(cls)
    if dataclasses.is_dataclass(cls):
        return _of_dataclass(cls)
    return None


def fill(cls: type[Any], recorded: Any, known: dict[str, Callable[[], Any]]) -> dict[str, Any]:
    """The recorded fields, and the defaults of missing fields."""
    if not isinstance(recorded, dict):
        raise ValueError("no fields")
    strange = sorted(str(key) for key in recorded if key not in known)
    if strange:
        raise UnreadableValueError(
            f"{_where(cls)} has no field {strange[0]!r:.80}, which the record has",
            "Keep the field, or register the class with a decode= that takes a dict of the "
            "recorded fields.",
        )
    return {key: recorded[key] if key in recorded else default() for key, default in known.items()}


def _missing(cls: type[Any], name: str) -> Callable[[], Any]:
    def fail() -> Any:
        raise UnreadableValueError(
            f"the record does not have {name!r}, a field of {_where(cls)} without a default",
            "Give it a default, or register the class with a decode= that takes a dict of the "
            "recorded fields.",
        )

    return fail


def _of_dataclass(cls: type[Any]) -> _Own:
    if any(base.__module__ == "builtins" and base is not object for base in cls.__mro__):
        raise TypeError(f"{_where(cls)} is more than its fields: give encode= and decode=")
    known: dict[str, Callable[[], Any]] = {}
    for field in dataclasses.fields(cls):
        if field.default is not dataclasses.MISSING:
            known[field.name] = functools.partial(as_it_is, field.default)
        elif field.default_factory is not dataclasses.MISSING:
            known[field.name] = field.default_factory
        else:
            known[field.name] = _missing(cls, field.name)
    aside = {
        name
        for base in cls.__mro__
        for name, held in vars(base).items()
        if isinstance(held, functools.cached_property)
    }

    def encode(value: Any) -> dict[str, Any]:
        more = vars(value).keys() - known.keys() - aside if hasattr(value, "__dict__") else ()
        if more:
            raise TypeError(
                f"a {cls.__qualname__} with an attribute {min(more)!r}, which is no field: make it "
                "one, or register the class with encode= and decode="
            )
        return {name: getattr(value, name) for name in known}

    def decode(recorded: Any) -> Any:
        # As copy does: without __init__, which may run any code.
        value = object.__new__(cls)
        for name, part in fill(cls, recorded, known).items():
            object.__setattr__(value, name, part)
        return value

    return encode, decode, cls.__dataclass_params__.frozen


def _of_enum(cls: type[Any]) -> _Own:
    def encode(value: Any) -> Any:
        return value.value if isinstance(value, enum.Flag) else value.name

    def decode(recorded: Any) -> Any:
        if issubclass(cls, enum.Flag):
            if type(recorded) is not int:
                raise ValueError("no flags")
            return cls(recorded)
        member = cls.__members__.get(recorded) if isinstance(recorded, str) else None
        if member is None:
            raise UnreadableValueError(
                f"{_where(cls)} has no member {recorded!r:.80}",
                "Keep the member, under the name that is recorded.",
            )
        return member

    return encode, decode, True


def _of_named_tuple(cls: type[Any]) -> _Own:
    known = {
        name: functools.partial(as_it_is, cls._field_defaults[name])
        if name in cls._field_defaults
        else _missing(cls, name)
        for name in cls._fields
    }

    def encode(value: Any) -> dict[str, Any]:
        if getattr(value, "__dict__", None):
            raise TypeError(f"a {cls.__qualname__} with attributes that are no fields")
        return dict(zip(cls._fields, value, strict=True))

    def decode(recorded: Any) -> Any:
        return tuple.__new__(cls, fill(cls, recorded, known).values())

    return encode, decode, True


def _of_model(cls: type[Any]) -> _Own:
    """A Pydantic model by its own __getstate__: no validator runs, so the result equals the
    original, set fields and private attributes included."""
    fields = cls.__pydantic_fields__

    def encode(value: Any) -> list[Any]:
        state = value.__getstate__()
        held = {name: part for name, part in state["__dict__"].items() if name in fields}
        return [
            held,
            state["__pydantic_fields_set__"],
            state.get("__pydantic_extra__"),  # a RootModel has neither
            state.get("__pydantic_private__"),
        ]

    def default_of(name: str) -> Any:
        if fields[name].is_required():
            return _missing(cls, name)()
        return fields[name].get_default(call_default_factory=True)

    def decode(recorded: Any) -> Any:
        held, given, extra, private = recorded
        known: dict[str, Callable[[], Any]] = {
            name: functools.partial(default_of, name) for name in fields
        }
        value: Any = object.__new__(cls)
        value.__setstate__(
            {
                "__dict__": fill(cls, held, known),
                "__pydantic_fields_set__": set(given),
                "__pydantic_extra__": extra,
                "__pydantic_private__": private,
            }
        )
        return value

    return encode, decode, False
