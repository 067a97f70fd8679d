"""The checkpointer: LangGraph's threads as logs, one log for each."""

from __future__ import annotations

import os
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial, update_wrapper
from types import TracebackType
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
    get_checkpoint_id,
    get_checkpoint_metadata,
)
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from recovery import CheckpointStore
from recovery.integrations.langgraph.elements import Element
from recovery.integrations.langgraph.index import CHECKPOINT, EVERY, WRITES, Entry
from recovery.integrations.langgraph.reading import Reading
from recovery.integrations.langgraph.rewriting import copy, delete, prune
from recovery.integrations.langgraph.serializer import Codec
from recovery.integrations.langgraph.thread import LOOKS_MAX, StaleError, Thread
from recovery.integrations.langgraph.threads import Threads, in_thread
from recovery.integrations.langgraph.values import Encoder, Found, State
from recovery.stores import RunStore

T = TypeVar("T")
P = ParamSpec("P")
S = TypeVar("S", bound="EventLogSaver")


def _in_thread(
    method: Callable[Concatenate[S, P], T],
) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
    """The async form of a method: does it in a thread, also where a subclass has its own."""
    name = method.__name__

    async def awaited(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return cast(T, await in_thread(getattr(self, name), *args, **kwargs))

    update_wrapper(awaited, method)
    awaited.__name__, awaited.__doc__ = f"a{name}", f"As ``{name}``."
    awaited.__qualname__ = method.__qualname__.replace(name, f"a{name}")
    return awaited


class EventLogSaver(BaseCheckpointSaver[str]):
    """A LangGraph checkpointer that keeps each thread in a log of its own.

    ``store``: the path of a directory, or a store (RunStore or CheckpointStore). ``serde``: by
    default LangGraph's serializer with its allowlist of types, which imports nothing by name.

    ``put`` and ``put_writes`` are durable when they return. Threads that write at once share a
    flush. All methods have an async form; all may be called from any thread. A context manager.

    One process writes to a thread at a time. The first write takes the thread's lock. The lock is
    let go ``release_after_s`` after the last write, by ``close``, and when more than
    ``threads_open_max`` threads are open. A writer waits up to 3 s for the lock, and then raises
    LogLockedError. It raises ThreadMovedError when another process has continued the thread since.
    Readers take no lock. Damage raises DamagedError, and nothing is restored from it.
    """

    def __init__(
        self,
        store: str | os.PathLike[str] | RunStore | CheckpointStore,
        *,
        serde: SerializerProtocol | None = None,
        release_after_s: float = 1.0,
        threads_open_max: int = 64,
    ) -> None:
        super().__init__(serde=serde or JsonPlusSerializer(allowed_msgpack_modules=None))
        if not isinstance(store, CheckpointStore):
            store = CheckpointStore(store)
        self._threads = Threads(store.backend, release_after_s, threads_open_max)

    def close(self) -> None:
        """Let go of all threads. A later call opens its thread again."""
        self._threads.close()

    def __enter__(self) -> EventLogSaver:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> EventLogSaver:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        await in_thread(self.close)

    # -- writing

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Record a checkpoint; it is durable when this returns."""
        thread_id, ns, parent = _place(config)
        id = checkpoint["id"]
        codec = Codec(self.serde)
        merged = get_checkpoint_metadata(config, metadata)
        run = str(merged.get("run_id") or "")
        with self._threads.using(thread_id) as thread, thread.writing() as log:
            thread.check_not_moved(ns, parent)
            base = self._states(thread, codec, ns, parent)
            encoder = Encoder(codec, base, [thread.recorded(ns, parent)])
            values = checkpoint["channel_values"]
            rest = {k: v for k, v in checkpoint.items() if k not in ("channel_values", "id")}
            body = {
                "ns": ns,
                "id": id,
                "parent": parent,
                "run": run,
                "checkpoint": codec.stored(rest),
                "metadata": codec.stored(merged),
                "values": {name: encoder.encode(name, name, values[name]) for name in values},
            }
            lsn = thread.append(log, CHECKPOINT, body)
            states = dict(zip(values, encoder.written(lsn), strict=True))
            thread.index.add(lsn, ns, id, parent, run)
            thread.remember(ns, id, states)
            thread.served(ns, id)
            if thread.index.checkpoints >= EVERY:
                thread.snapshot(log)
        return _config(config["configurable"]["thread_id"], ns, id)

    def put_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Record what a task has written; it is durable when this returns."""
        if not writes:
            return
        thread_id, ns, id = _place(config)
        codec = Codec(self.serde)
        with self._threads.using(thread_id) as thread, thread.writing() as log:
            thread.check_not_moved(ns, id)
            recorded = thread.recorded(ns, id)
            encoder = Encoder(codec, self._states(thread, codec, ns, id), [recorded])
            forms = [
                [channel, WRITES_IDX_MAP.get(channel, at), encoder.encode(at, channel, value)]
                for at, (channel, value) in enumerate(writes)
            ]
            body = {"ns": ns, "id": id, "task": task_id, "path": task_path, "writes": forms}
            lsn = thread.append(log, WRITES, body)
            thread.index.add_writes(lsn, ns, id)
            for state in encoder.written(lsn):
                recorded.add([state] if isinstance(state, Element) else state.fresh)

    def _states(self, thread: Thread, codec: Codec, ns: str, id: str) -> dict[str, State]:
        """The recorded values of a checkpoint, to compare with."""
        known = thread.states.get((ns, id))
        if known is None:
            entry = thread.index.find(ns, id) if id else None
            if entry is None:
                return {}
            known = Reading(thread, codec).states(entry)
        states = {
            channel: one.state() if isinstance(one, Found) else one
            for channel, one in known.items()
        }
        thread.remember(ns, id, states)
        return states

    # -- reading

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """The newest checkpoint of a thread and namespace, or the one that ``config`` names."""
        thread_id, ns, id = _place(config)

        def read(thread: Thread) -> CheckpointTuple | None:
            index = thread.look()
            entry = None
            if not index.is_partial:
                entry = index.find(ns, id) if id else index.latest(ns)
            if entry is None:
                if not id:
                    thread.served(ns, "")
                return None
            reading = Reading(thread, Codec(self.serde))
            found = self._tuple(reading, entry, config["configurable"]["thread_id"])
            thread.remember(ns, entry.id, reading.restored)
            thread.served(ns, entry.id)
            return found._replace(config=config) if id else found

        return self._reading(thread_id, read)

    def _reading(self, thread_id: str, read: Callable[[Thread], T]) -> T:
        with self._threads.using(thread_id) as thread:
            return _looking(thread, read)

    def _tuple(self, reading: Reading, entry: Entry, thread_id: Any) -> CheckpointTuple:
        checkpoint, metadata = reading.checkpoint(entry)
        return CheckpointTuple(
            _config(thread_id, entry.ns, entry.id),
            checkpoint,
            metadata,
            _config(thread_id, entry.ns, entry.parent) if entry.parent else None,
            [write.read(reading) for write in reading.writes(entry)],
        )

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Checkpoints, the newest first; without ``config`` of all threads, one after the other.

        Each is read when the iterator comes to it. No lock is held in between.
        """
        left = limit
        threads: Sequence[tuple[Callable[[str], AbstractContextManager[Thread]], str, Any]]
        if config is None:
            threads = [(self._threads.using_log, name, None) for name in self._threads.names()]
        else:
            thread_id = config["configurable"]["thread_id"]
            threads = [(self._threads.using, str(thread_id), thread_id)]
        for using, name, thread_id in threads:
            begun, again = False, True
            while again:
                with using(name) as thread:
                    entries = _looking(thread, partial(_selected, config, before))
                again = False
                for entry in entries:
                    if left is not None and left <= 0:
                        return
                    with using(name) as thread:
                        found = _looking(thread, partial(self._listed, entry, filter, thread_id))
                    if found:
                        begun, left = True, None if left is None else left - 1
                        yield found
                    elif found is False and not begun:
                        again = True  # a newer one has stood in for it since they were selected
                        break

    def _listed(
        self, entry: Entry, filter: dict[str, Any] | None, thread_id: Any, thread: Thread
    ) -> CheckpointTuple | Literal[False] | None:
        """None for what the filter leaves out, False for what was deleted meanwhile."""
        now = thread.look().find(entry.ns, entry.id)
        if now is None:
            return False
        entry = now  # a prune has recorded it again
        reading = Reading(thread, Codec(self.serde))
        if filter:
            metadata = reading.metadata(entry)
            if any(metadata.get(key) != value for key, value in filter.items()):
                return None
        return self._tuple(reading, entry, thread.thread_id if thread_id is None else thread_id)

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """What the ancestors of a checkpoint have written to channels; see BaseCheckpointSaver."""
        thread_id, ns, id = _place(config)

        def read(thread: Thread) -> dict[str, DeltaChannelHistory]:
            index = thread.look()
            entry = index.find(ns, id) if id else index.latest(ns)
            reading = Reading(thread, Codec(self.serde))
            found = reading.histories(entry, channels)
            return {channel: history.read(reading) for channel, history in found.items()}

        return self._reading(thread_id, read) if channels else {}

    # -- deleting

    def delete_thread(self, thread_id: str) -> None:
        """Delete a thread; its log is durably gone when this returns.

        A crash in between leaves all of it or nothing. Deleting it again frees what a crash left.
        """
        with self._threads.using(str(thread_id)) as thread:
            delete(thread)
        self._threads.store.sweep()

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Keep the newest checkpoint of each namespace ("keep_latest"), or none ("delete").

        What is kept is recorded again, and the space of all before it is freed. A crash in between
        leaves the thread as it was, or pruned. Delta channels keep their values.
        """
        if strategy not in ("keep_latest", "delete"):
            raise ValueError(f'strategy is "keep_latest" or "delete", not {strategy!r}')
        for thread_id in map(str, thread_ids):
            if strategy == "delete":
                self.delete_thread(thread_id)
                continue
            with self._threads.using(thread_id) as thread:
                prune(thread, Codec(self.serde), _newest)

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints of these runs, and the writes after them, in all threads.

        The checkpoints of later runs keep their values. Reads the index of every thread.
        """
        runs = {*map(str, run_ids)} - {""}
        for name in self._threads.names() if runs else []:
            with self._threads.using_log(name) as thread:
                prune(
                    thread,
                    Codec(self.serde),
                    lambda entries: [entry for entry in entries if entry.run not in runs],
                )

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy all checkpoints and writes to a thread that has none.

        A crash in between leaves no target thread. Raises ValueError when the target has
        checkpoints.
        """
        source_id, target_id = str(source_thread_id), str(target_thread_id)
        with self._threads.using(source_id) as source, self._threads.using(target_id) as target:
            copy(source, target, Codec(self.serde))

    # -- versions and async forms

    def get_next_version(self, current: str | None, channel: None) -> str:
        """The next version of a channel: sorts after ``current``, also after one of SqliteSaver."""
        number = int(str(current).split(".")[0]) + 1 if current is not None else 1
        return f"{number:010}.{random.getrandbits(32):08x}"  # a checkpoint holds about ten of them

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """As ``list``."""
        found = self.list(config, filter=filter, before=before, limit=limit)
        while isinstance(item := await in_thread(next, found, None), CheckpointTuple):
            yield item

    aget_tuple = _in_thread(get_tuple)
    aput = _in_thread(put)
    aput_writes = _in_thread(put_writes)
    aget_delta_channel_history = _in_thread(get_delta_channel_history)
    adelete_thread = _in_thread(delete_thread)
    aprune = _in_thread(prune)
    adelete_for_runs = _in_thread(delete_for_runs)
    acopy_thread = _in_thread(copy_thread)


def _place(config: RunnableConfig) -> tuple[str, str, str]:
    """Thread, namespace, and checkpoint or ""."""
    found = config["configurable"]
    return str(found["thread_id"]), found.get("checkpoint_ns", ""), get_checkpoint_id(config) or ""


def _config(thread_id: Any, ns: str, id: str) -> RunnableConfig:
    return {"configurable": {"thread_id": thread_id, "checkpoint_ns": ns, "checkpoint_id": id}}


def _looking(thread: Thread, read: Callable[[Thread], T]) -> T:
    """What is read; once more when another process has pruned the thread meanwhile."""
    for _ in range(LOOKS_MAX - 1):
        try:
            with thread.lock:
                return read(thread)
        except StaleError:
            continue
    with thread.lock:
        return read(thread)


def _selected(
    config: RunnableConfig | None, before: RunnableConfig | None, thread: Thread
) -> list[Entry]:
    """The checkpoints that ``list`` may give, the newest first."""
    index = thread.look()
    ns, id = None, ""
    if config is not None:
        ns, id = config["configurable"].get("checkpoint_ns"), get_checkpoint_id(config) or ""
    limit = get_checkpoint_id(before) if before else None
    entries = [] if index.is_partial else index.all(ns)
    chosen = [
        entry
        for entry in entries
        if (not id or entry.id == id) and (limit is None or entry.id < limit)
    ]
    return sorted(chosen, key=lambda entry: entry.id, reverse=True)


def _newest(entries: list[Entry]) -> list[Entry]:
    """The newest checkpoint of each namespace."""
    newest: dict[str, Entry] = {}
    for entry in entries:
        if entry.ns not in newest or newest[entry.ns].id < entry.id:
            newest[entry.ns] = entry
    return [*newest.values()]
