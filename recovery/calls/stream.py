"""Streams the chunks of a call to the agent as they come, and records its outcome.

A stream drives the steps of its call (calls.carry_out_call) by itself, whenever its consumer asks
for a chunk. It has no task and no buffer: a generator gets no further than its consumer.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import replace
from types import TracebackType
from typing import Any, Generic, NoReturn, Self, cast

from eventlog import Packed, RefusedValueError
from eventlog.light_dataclass import light_dataclass
from recovery.agent_code.call_site import call_site, is_over, present
from recovery.calls.carry_out_call import call_steps
from recovery.calls.identity import plainly
from recovery.declare.spec import ToolSpec, is_generator
from recovery.engine.drive import drive, drive_async
from recovery.engine.driver_effects import Effect, Invoke
from recovery.engine.execution import Execution
from recovery.engine.task_state import tasks_of
from recovery.engine.unrecordable_results import refuse_result
from recovery.errors import RecoveryError
from recovery.journal.call import Arguments
from recovery.values.model_data import pack_result
from recovery.values.pack import pack, unpack
from recovery.values.type_variables import Chunk
from recovery.values.types import digest

_END = object()  # of a generator
_NONE = object()  # no result yet
STATE_SIZE_MAX = 64 << 10  # bytes of a state that is looked at after each chunk


class _Left(BaseException):
    """The consumer has left the stream before its end."""


@light_dataclass
class _Chunk:
    value: Any


Perform = Callable[[Effect], Any]
Steps = Generator[Effect | _Chunk, Any, None]


def combined(chunks: list[Any]) -> Any:
    """The default result of chunks: text or bytes are joined, others make a list."""
    for kind in (str, bytes):
        if chunks and all(type(chunk) is kind for chunk in chunks):
            return kind().join(chunks)
    return chunks


def split(value: Any) -> list[Any]:
    """The default chunks of a result: a text is one chunk, a list gives its items."""
    if isinstance(value, str | bytes):
        return [value] if value else []
    return list(value) if isinstance(value, list) else [value]


class _Stream:
    """A call whose chunks are requested one by one.

    ``replayed``: whether they are made from the recorded outcome, and nothing is executed.
    """

    def __init__(
        self, run: Execution, perform: Perform, spec: ToolSpec, given: Arguments, call_id: str
    ) -> None:
        """Not for users: call ``Run.stream``."""
        self.replayed = True
        if run.rules >= 2:
            spec, given = plainly(spec, given)
        self._run, self._perform = run, perform
        self._spec, self._name, self._function = spec, spec.name, spec.function
        self._combine, self._split = spec.combine, spec.split
        self._site = call_site()
        self._received: list[bytes] = []
        self._outcome: Any = _NONE  # of the call
        self._result: Any = _NONE  # the same, once the consumer has ended
        self._held: bytes | None = None  # the state, when the consumer was given its last chunk
        self._steps = self._call_steps(call_steps(run, self._retried_unseen(spec), given, call_id))
        self._begun = self._busy = self._is_large = False
        self._given = 0  # chunks

    @property
    def result(self) -> Any:
        """What the call returned. RecoveryError until the stream has been read to its end."""
        if self._result is _NONE:
            raise RecoveryError(
                f"the stream of {self._name} ({self._site}) has no result: it was not read to its "
                "end, or it failed"
            )
        return self._result

    def is_left(self, *, ended: bool = False) -> bool:
        """Whether the consumer of the last chunk does something else now, or is ``ended``."""
        owner = self._run.streams.get(self)
        return owner is present() or (ended and is_over(owner))

    def refuse(self, what: str = "something was done") -> NoReturn:
        """Not for users: stops the run, because the stream was left open."""
        self.abandon()
        self._run.stop(
            RecoveryError(
                f"run {self._run.run_id!r}: {what} while the stream of {self._name} "
                f"({self._site}) was open. Its chunks are not recorded, so nothing may depend on "
                "how many there are: read it to its end before the next thing that is recorded, or "
                "leave it by `async with run.stream(...) as stream` (`with`), which records what "
                "was received. Its call is in doubt now."
            )
        )

    def abandon(self) -> None:
        """End the stream, which has no consumer any more: the call counts as cancelled."""
        self._run.streams.pop(self, None)
        self._steps.close()

    # -- the steps of the call

    def _retried_unseen(self, spec: ToolSpec) -> ToolSpec:
        """The tool, without retries after the first chunk: the consumer has that chunk already."""
        retry = spec.retry
        if retry is None:
            return spec
        again = retry.again
        unseen = replace(retry, on=lambda exc: not self._received and again(exc, 1))
        return replace(spec, retry=unseen)

    def _call_steps(self, call: Generator[Effect, Any, Any]) -> Steps:
        answer: Any = None
        error: BaseException | None = None
        while True:
            try:
                effect = call.throw(error) if error is not None else call.send(answer)
            except StopIteration as done:
                self._outcome = done.value
                break
            answer = error = None
            try:
                if isinstance(effect, Invoke) and effect.function is self._function:
                    answer = yield from self._chunks(effect)
                else:
                    answer = yield effect
            except BaseException as exc:
                error = exc
        if self.replayed:
            yield from self._again()
        self._result = self._outcome

    def _chunks(self, invoke: Invoke) -> Generator[Effect | _Chunk, Any, Any]:
        """Execute the call: yield its chunks, and return their result."""
        self.replayed = False
        generated = yield from self._opened(invoke)
        source = _Source(generated, self._name, isinstance(self, Stream))
        closing = Invoke(source.close, (), {}, invoke.scope)
        following = replace(invoke, function=source.next, args=(), kwargs={})
        try:
            while (chunk := (yield following)) is not _END:
                self._received.append(packed := self._packed(chunk, invoke))
                self._note(packed, invoke)
                yield _Chunk(unpack(packed))
        except _Left:
            yield closing
        except GeneratorExit:  # abandoned: nothing can be waited for
            raise
        except BaseException:
            with suppress(Exception):
                yield closing
            raise
        chunks = [unpack(packed) for packed in self._received]
        if self._combine is None:
            return combined(chunks)
        return (yield Invoke(self._combine, (chunks,), {}, None))

    def _packed(self, chunk: Any, invoke: Invoke) -> Packed:
        try:
            return pack_result(chunk, f"chunk {len(self._received)} of {self._name}")
        except RefusedValueError as exc:
            assert invoke.scope is not None
            assert invoke.scope.call is not None
            refuse_result(self._run, self._spec, invoke.scope.call, exc, chunk)

    def _note(self, packed: Packed, invoke: Invoke) -> None:
        assert invoke.scope is not None
        subjects = self._run.subjects
        if keys := subjects.of_call(invoke.scope.calls[-1]):
            subjects.note(packed, keys)  # the consumer has it before the outcome is recorded

    def _opened(self, invoke: Invoke) -> Generator[Effect, Any, Any]:
        if is_generator(invoke.function):  # of which no code runs yet
            return invoke.function(*invoke.args, **invoke.kwargs)
        return (yield invoke)

    def _again(self) -> Steps:
        """The recorded outcome in chunks."""
        value = unpack(pack(self._outcome, "outcome"))
        if self._split is None:
            chunks = split(value)
        else:
            chunks = list((yield Invoke(self._split, (value,), {}, None)))
        with suppress(_Left):
            for chunk in chunks:
                yield _Chunk(chunk)

    def _following(
        self, error: BaseException | None = None
    ) -> Generator[Effect, Any, _Chunk | None]:
        """Continue until there is a chunk, which is returned, or an end."""
        if self._busy:
            raise RecoveryError(f"two at once read the stream of {self._name} ({self._site})")
        self._check_state()
        self._run.streams.pop(self, None)
        self._begun = self._busy = True
        try:
            item = self._steps.throw(error) if error is not None else next(self._steps)
            while not isinstance(item, _Chunk):
                try:
                    answer = yield item
                except BaseException as exc:
                    item = self._steps.throw(exc)
                else:
                    item = self._steps.send(answer)
        except StopIteration:
            return None
        finally:
            self._busy = False
        self._run.streams[self] = present()
        self._given += 1
        is_due = self._given.bit_count() == 1  # a power of two
        self._held = self._state_digest() if is_due or not self._is_large else None
        return item

    def _state_digest(self) -> bytes | None:
        """Of the run's state; None where it cannot be carried."""
        try:
            packed = pack(self._run.state, "state")
        except RefusedValueError:
            return None
        self._is_large = len(packed) > STATE_SIZE_MAX
        return digest(packed)

    def _check_state(self) -> None:
        """Stop the run if its consumer changed the state between chunks: the number of such
        changes is not recorded. Beside other tasks, the change cannot be attributed."""
        held, self._held = self._held, None
        if held is not None and held != self._state_digest() and _is_alone(self._run):
            self.refuse("run.state was changed")

    def _leaving(self, exc: BaseException | None) -> BaseException | None:
        """The exception that ends the call when its block is left; None if the call has ended."""
        if not self._begun:
            self._steps.close()
            return None
        if self not in self._run.streams:
            return None
        if exc is None or isinstance(exc, Exception | GeneratorExit):
            return _Left()
        return exc  # a cancellation, a stop: not of the stream's making


class Stream(_Stream, Generic[Chunk]):
    """A call whose chunks come with ``async for``; made by ``Run.stream``.

    ``result`` is what the call returned, once the stream has been read to its end or its
    ``async with`` block was left. ``replayed`` says whether the chunks come from the record.
    """

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Chunk:
        chunk = await self._drive()
        if chunk is None:
            raise StopAsyncIteration
        return cast(Chunk, chunk.value)

    async def _drive(self, error: BaseException | None = None) -> _Chunk | None:
        steps = self._following(error)
        return await drive_async(steps, self._perform, self._run.mutex)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        error = self._leaving(exc)
        if error is not None:
            try:
                await self._drive(error)
            except BaseException as raised:
                if raised is not exc:
                    raise

    async def aclose(self) -> None:
        """Leave the stream: what was received becomes the outcome of the call."""
        await self.__aexit__(None, None, None)


class SyncStream(_Stream, Generic[Chunk]):
    """A call whose chunks come with ``for``; made by ``SyncRun.stream``. See Stream."""

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Chunk:
        chunk = self._drive()
        if chunk is None:
            raise StopIteration
        return cast(Chunk, chunk.value)

    def _drive(self, error: BaseException | None = None) -> _Chunk | None:
        return drive(self._following(error), self._perform, self._run.mutex)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        error = self._leaving(exc)
        if error is not None:
            try:
                self._drive(error)
            except BaseException as raised:
                if raised is not exc:
                    raise

    def close(self) -> None:
        """Leave the stream: what was received becomes the outcome of the call."""
        self.__exit__(None, None, None)


def _is_alone(run: Execution) -> bool:
    """Whether no other call, and no other task, of the agent is in flight."""
    loop = asyncio._get_running_loop()
    tasks = () if loop is None else tasks_of(run, loop, {asyncio.current_task(loop)})
    return run.in_flight <= 1 and not any(True for _ in tasks)


class _Source:
    """The source of chunks. ``next`` and ``close`` are to be called, and awaited if async."""

    def __init__(self, value: Any, name: str, in_async: bool) -> None:
        self._value = value
        self.next: Callable[[], Any]
        self.close: Callable[[], Any]
        if hasattr(value, "__aiter__"):
            self._chunks = aiter(value)
            self.next, self.close = self._next_async, self._close_async
            if not in_async:
                # One loop for all of it: async generators belong to the loop that began them.
                self._runner = asyncio.Runner()
                self.next, self.close = self._next_in_runner, self._close_in_runner
        elif hasattr(value, "__iter__") and not isinstance(value, str | bytes | dict):
            self._chunks = iter(value)
            self.next, self.close = self._next, self._close
        else:
            raise TypeError(
                f"{name} returned {type(value).__name__}, and a stream is of a generator, or of a "
                "function that returns an iterator of chunks; for others there is run.call"
            )

    async def _next_async(self) -> Any:
        return await anext(self._chunks, _END)

    async def _close_async(self) -> None:
        for close in ("aclose", "close"):
            if hasattr(self._value, close):
                ended = getattr(self._value, close)()
                if inspect.isawaitable(ended):
                    await ended
                return

    def _next_in_runner(self) -> Any:
        chunk = self._runner.run(self._next_async())
        if chunk is _END:
            self._runner.close()
        return chunk

    def _close_in_runner(self) -> None:
        with self._runner:
            self._runner.run(self._close_async())

    def _next(self) -> Any:
        return next(self._chunks, _END)

    def _close(self) -> None:
        if hasattr(self._value, "close"):  # one that runs in an abandoned thread refuses
            self._value.close()
