"""Keeps arguments out of the log: replaces them by digests, and removes them from other texts."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import msgpack

from eventlog import RefusedValueError
from recovery.option_checks import nearest
from recovery.values.pack import pack
from recovery.values.secret_forms import forms, parts
from recovery.values.types import Redacted

if TYPE_CHECKING:
    from recovery.journal.call import Arguments


REMOVED = "[redacted]"
TEXT_SIZE_MIN = 4  # shorter ones occur everywhere
TEXTS_MAX = 1000  # that are looked for
PART_LENGTH_MAX = 500  # characters of a personal text that is looked for


def check_parameters(
    function: Callable[..., Any], names: Sequence[str], option: str = "redact"
) -> tuple[str, ...]:
    """The names of parameters; TypeError or ValueError when the function lacks one."""
    if isinstance(names, str):
        raise TypeError(f"{option}= is a sequence of names of parameters: {option}=[{names!r}]")
    parameters = inspect.signature(getattr(function, "__func__", function)).parameters
    if not any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
        for name in names:
            if (name.partition(".")[0] if option == "identity" else name) not in parameters:
                shown = getattr(function, "__name__", function)
                near = nearest(str(name), parameters)
                hint = f". Did you mean {near[0]!r}?" if near else ""
                raise ValueError(f"{option}={name!r}: {shown} has no such parameter{hint}")
    return tuple(names)


class Redacting(Protocol):
    """The redacted arguments of a tool."""

    @property
    def name(self) -> str: ...
    @property
    def function(self) -> Callable[..., Any]: ...
    @property
    def redact(self) -> tuple[str, ...]: ...


class Secrets:
    """The redacted arguments of one execution of a run. Guarded by the run's mutex.

    ``salt``: of the run, and of its forks, so that digests made for another run cannot be looked
    up. ``also``: other secrets that are removed from texts.
    """

    def __init__(self, salt: str, also: Secrets | None = None) -> None:
        self._salt, self._also = salt, also
        self._given: dict[int, Arguments] = {}
        self._texts: dict[str, None] = {}
        self._bytes: dict[bytes, None] = {}

    # -- what is recorded

    def hide(self, tool: Redacting, given: Arguments) -> Arguments:
        """The arguments, with placeholders for those that are redacted."""

        def hidden(name: str, value: Any) -> Any:
            return (
                value if isinstance(value, Redacted) else self._placeholder(tool.name, name, value)
            )

        args, kwargs = given
        try:
            bound = inspect.signature(tool.function).bind(*args, **kwargs)
        except TypeError:  # the call is about to fail; its arguments cannot be assigned
            return (
                tuple(hidden("", value) for value in args),
                {name: hidden(name, value) for name, value in kwargs.items()},
            )
        for name, parameter in bound.signature.parameters.items():
            if name not in bound.arguments:
                continue
            value = bound.arguments[name]
            if name in tool.redact:
                if parameter.kind is parameter.VAR_POSITIONAL:
                    bound.arguments[name] = tuple(hidden(name, part) for part in value)
                elif parameter.kind is parameter.VAR_KEYWORD:
                    bound.arguments[name] = {key: hidden(key, value[key]) for key in value}
                else:
                    bound.arguments[name] = hidden(name, value)
            elif parameter.kind is parameter.VAR_KEYWORD:
                bound.arguments[name] = {
                    key: hidden(key, part) if key in tool.redact else part
                    for key, part in value.items()
                }
        return bound.args, bound.kwargs

    def _placeholder(self, tool: str, name: str, value: Any) -> Redacted:
        try:
            packed = pack(value, "")
        except RefusedValueError:  # its path and reason may quote a secret
            where = f"{tool}({name})"
            raise RefusedValueError(where, "a redacted value that cannot be carried") from None
        self._remember(value)
        import hashlib  # noqa: PLC0415 - only where something is redacted

        made = hashlib.blake2b(
            msgpack.packb([tool, name]) + packed,
            digest_size=16,
            key=self._salt.encode()[:64],
            person=b"agent-eventlog",
        )
        return Redacted(made.digest())

    # -- what the tool gets

    def keep(self, call: int, given: Arguments) -> None:
        """Remember the arguments of a call (the LSN of its intent) while it is made."""
        self._given[call] = given

    def arguments(self, call: int, shown: Arguments) -> Arguments:
        """The arguments for the function."""
        return self._given.get(call, shown)

    def forget(self, call: int) -> None:
        """The call is over."""
        self._given.pop(call, None)

    # -- where else it may turn up

    def _remember(self, value: Any) -> None:
        for part in parts(value):
            if len(self._texts) >= TEXTS_MAX:
                return
            if isinstance(part, bytes) and len(part) >= TEXT_SIZE_MIN:
                self._bytes[part] = None
            self._add(*forms(part))

    def _add(self, *texts: str) -> None:
        for text in texts:
            if len(text) >= TEXT_SIZE_MIN:
                self._texts[text] = None
                self._bytes[text.encode("utf-8", "surrogatepass")] = None

    def add_personal(self, value: Any) -> None:
        """Remove the texts in this value of a subject as well; the newest ones are kept."""
        for part in parts(value):
            if not isinstance(part, str | bytes) or TEXT_SIZE_MIN <= len(part) <= PART_LENGTH_MAX:
                self._add(*forms(part))
        while len(self._texts) > TEXTS_MAX:
            del self._texts[next(iter(self._texts))]
        while len(self._bytes) > TEXTS_MAX:
            del self._bytes[next(iter(self._bytes))]

    def _all_texts(self) -> dict[str, None]:
        return self._texts if self._also is None else self._texts | self._also._all_texts()

    def _all_bytes(self) -> dict[bytes, None]:
        return self._bytes if self._also is None else self._bytes | self._also._all_bytes()

    def scrub(self, text: str) -> str:
        """The text without the secrets that occur in it literally."""
        for secret in sorted(self._all_texts(), key=len, reverse=True):
            text = text.replace(secret, REMOVED)
        return text

    def scrubbed(self, args: tuple[Any, ...]) -> list[Any] | None:
        """Arguments of an exception without secrets; None when they cannot be removed."""
        if not self._all_bytes():
            return list(args)
        clean = [self._clean(arg) for arg in args]
        try:
            packed = pack(clean, "")
        except RefusedValueError:
            return None
        return None if self._holds(clean) or self._is_in(packed) else clean

    def _clean(self, arg: Any) -> Any:
        if type(arg) is str:
            return self.scrub(arg)
        if type(arg) is bytes:
            for secret in sorted(self._all_bytes(), key=len, reverse=True):
                arg = arg.replace(secret, REMOVED.encode())
            return arg
        return REMOVED if self._is_one(arg) else arg

    def _holds(self, value: Any) -> bool:
        return any(self._is_one(part) for part in parts(value))

    def _is_one(self, part: Any) -> bool:
        """Whether a value that is no text is a secret: a number, a date, a path."""
        known = self._all_texts()
        return (
            not isinstance(part, str | bytes)
            and part is not None
            and any(form in known for form in forms(part))
        )

    def _is_in(self, packed: bytes) -> bool:
        return any(packed.find(secret) >= 0 for secret in self._all_bytes())


NO_SECRETS = Secrets("")
