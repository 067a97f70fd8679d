"""Carries models of undeclared types, such as an SDK's reply, as their plain fields.

On request it also carries dataclasses and named tuples.
"""

from __future__ import annotations

import enum
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields as fields_of_dataclass
from dataclasses import is_dataclass
from typing import Any

from eventlog import Packed, RefusedValueError
from recovery.values.codec import BY_NAME, BY_TYPE, REGISTERED, Codec, found_codec
from recovery.values.pack import pack
from recovery.values.type_names import type_name

_NAME = "model data of agent-eventlog"
DEPTH_MAX = 60  # models inside one another


class ModelData:
    """The fields of a Pydantic model whose type no tool and no agent names; from
    ``CheckpointManager.save_checkpoint`` also those of such a dataclass or named tuple.

    Its fields are attributes, as in the model; ``model_type`` is the name of the model's type.
    ``model_dump`` and ``dict()`` work as for a model. It has no other methods and no private
    attributes. Two are equal when their types' names and fields are.
    """

    __slots__ = ("__dict__", "_type")

    def __init__(self, model_type: str, fields: dict[str, Any]) -> None:
        object.__setattr__(self, "_type", model_type)
        self.__dict__.update(fields)

    @property
    def model_type(self) -> str:
        """Module and name of the model's type."""
        return str(self._type)

    def model_dump(self) -> dict[str, Any]:
        """All fields as plain dicts, also those of models inside."""
        return {name: _dumped(value) for name, value in self.__dict__.items()}

    def model_dump_json(self) -> str:
        """The same as JSON."""
        return json.dumps(self.model_dump())

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        return iter(self.__dict__.items())

    def __getattr__(self, name: str) -> Any:
        if name == "_type" or name.startswith("__"):  # while it is being copied
            raise AttributeError(name)
        raise AttributeError(
            f"the recorded {self._type} has no {name!r}: of a model whose type neither a tool nor "
            "the agent names, its fields are recorded. Name the type in the return annotation of "
            "the tool, or register it, to have the model itself",
            name=name,
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ModelData):
            return NotImplemented
        return (self._type, self.__dict__) == (other._type, other.__dict__)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        parts = ", ".join(f"{name}={value!r}" for name, value in self.__dict__.items())
        return f"{self._type.rpartition('.')[2]}({parts})"


def pack_result(value: Any, path: str) -> Packed:
    """The result of a call, packed; RefusedValueError with the path to a value that cannot be
    recorded."""
    try:
        return pack(value, path)
    except RefusedValueError:
        data = _as_data(value, 0, _of_model)
        if data is value:
            raise
    return pack(data, path)


def as_data(values: dict[str, Any]) -> dict[str, Any]:
    """The values; models, dataclasses, named tuples and enums of unknown types as their data."""
    found: dict[str, Any] = _as_data(values, 0, _of_anything)
    return found


_FieldsOf = Callable[[Any], dict[str, Any] | None]  # None: it is none of these


def _of_model(value: Any) -> dict[str, Any] | None:
    pydantic = sys.modules.get("pydantic")
    if pydantic is not None and isinstance(value, pydantic.BaseModel):
        return {**value.__dict__, **(value.__pydantic_extra__ or {})}
    return None


def _of_anything(value: Any) -> dict[str, Any] | None:
    if is_dataclass(value) and not isinstance(value, type):
        return {one.name: getattr(value, one.name) for one in fields_of_dataclass(value)}
    names = getattr(value, "_fields", None)
    if isinstance(value, tuple) and names is not None:
        return dict(zip(names, value, strict=True))
    return _of_model(value)


def _as_data(value: Any, depth: int, fields_of: _FieldsOf) -> Any:
    """The value, its parts of unknown types as their data; itself if it has none."""
    if depth > DEPTH_MAX:
        return value
    if type(value) in (list, tuple):
        parts = [_as_data(one, depth + 1, fields_of) for one in value]
        same = all(one is other for one, other in zip(parts, value, strict=True))
        return value if same else type(value)(parts)
    if type(value) is dict:
        changed = {name: _as_data(one, depth + 1, fields_of) for name, one in value.items()}
        return value if all(changed[name] is one for name, one in value.items()) else changed
    if found_codec(type(value)) is not None:
        return value
    if depth and isinstance(value, enum.Enum):
        return value.value
    fields = fields_of(value)
    if fields is None:
        return value
    held = {name: _as_data(one, depth + 1, fields_of) for name, one in fields.items()}
    return ModelData(type_name(type(value)), held)


def _dumped(value: Any) -> Any:
    if isinstance(value, ModelData):
        return value.model_dump()
    if type(value) in (list, tuple):
        return type(value)(_dumped(one) for one in value)
    if type(value) is dict:
        return {name: _dumped(one) for name, one in value.items()}
    return value


def _encode(data: ModelData) -> list[Any]:
    return [data.model_type, dict(data.__dict__)]


def _decode(recorded: Any) -> ModelData:
    match recorded:
        case [str(name), dict(fields)] if all(type(one) is str for one in fields):
            return ModelData(name, fields)
    raise ValueError("no data of a model")


BY_NAME[_NAME] = BY_TYPE[ModelData] = Codec(
    REGISTERED, _encode, _decode, freeze=None, kind=ModelData, name=_NAME
)
