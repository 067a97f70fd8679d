"""Begins a thread, or resumes it where it stopped."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver

KEY = "input_key"  # in the metadata of checkpoints


def begin_or_resume(
    graph: Any, input: Any, config: RunnableConfig, *, key: str = "", **options: Any
) -> Any:
    """Invoke a compiled ``graph`` with ``input``, or finish what a crash interrupted.

    ``config``: as of ``invoke``, with a ``thread_id``.

    A thread without checkpoints begins with ``input``. Any other thread is resumed first, by
    ``invoke(None)``. An empty ``state.next`` does not mean that a thread has finished: the writes
    of a step may be recorded, and its checkpoint not.

    ``key``: names this input, for a thread that takes several. An input whose key the thread knows
    is not given again. A new one is given after the work before it has finished. If that work waits
    for a person (an interrupt), its state is returned, and the input is not given.

    ``options`` go to ``invoke``; ``durability`` is "sync" unless they say otherwise.
    """
    options.setdefault("durability", "sync")
    saver, named = _saver(graph), _named(config, key)
    if saver.get_tuple(config) is None:
        return graph.invoke(input, named, **options)
    if not key or next(saver.list(config, filter={KEY: key}, limit=1), None) is not None:
        return graph.invoke(None, named, **options)
    result = graph.invoke(None, config, **options)
    if graph.get_state(config).interrupts:
        return result
    return graph.invoke(input, named, **options)


async def abegin_or_resume(
    graph: Any, input: Any, config: RunnableConfig, *, key: str = "", **options: Any
) -> Any:
    """As ``begin_or_resume``, by ``ainvoke``: ``graph``, ``input``, ``config``, ``key``,
    ``options``."""
    options.setdefault("durability", "sync")
    saver, named = _saver(graph), _named(config, key)
    if await saver.aget_tuple(config) is None:
        return await graph.ainvoke(input, named, **options)
    if not key or [one async for one in saver.alist(config, filter={KEY: key}, limit=1)]:
        return await graph.ainvoke(None, named, **options)
    result = await graph.ainvoke(None, config, **options)
    if (await graph.aget_state(config)).interrupts:
        return result
    return await graph.ainvoke(input, named, **options)


def _saver(graph: Any) -> BaseCheckpointSaver[Any]:
    saver = graph.checkpointer
    if not isinstance(saver, BaseCheckpointSaver):
        raise TypeError(
            "the graph has no checkpointer, so nothing of it can be resumed. Compile it with one: "
            "builder.compile(checkpointer=EventLogSaver(path))"
        )
    return saver


def _named(config: RunnableConfig, key: str) -> RunnableConfig:
    if not key:
        return config
    metadata: Mapping[str, Any] = config.get("metadata") or {}
    return {**config, "metadata": {**metadata, KEY: key}}
