"""Sessions whose reads and writes are recorded."""

from __future__ import annotations

from typing import Any

from recovery import Call, Resolution, current_run, tool
from recovery.integrations.openai_agents.proxy import Proxy


class RecordedSession(Proxy):
    """A session. A run that is made again reads what it read first, and writes nothing twice.

    The session must have one writer: the number of its items shows whether a write that a crash
    interrupted has taken place.
    """

    async def get_items(self, limit: int | None = None) -> list[Any]:
        """The items as they were when the run first asked."""

        @tool(name="session.get_items", after_crash="retry", identity=_read_by)
        async def get_items(session_id: str, limit: int | None) -> list[Any]:
            return list(await self.inner.get_items(limit))

        return await get_items(self.inner.session_id, limit)

    async def add_items(self, items: list[Any]) -> None:
        """Add the items, once."""
        if current_run() is None:
            return await self.inner.add_items(items)

        async def look(call: Call) -> Resolution:
            _, added, before = call.args
            return await self._look(before, before + len(added), None)

        @tool(name="session.add_items", reconcile=look, identity=_added_by)
        async def add_items(session_id: str, items: list[Any], before: int) -> None:
            await self.inner.add_items(items)

        await add_items(self.inner.session_id, items, await self._length())

    async def pop_item(self) -> Any:
        """Take the last item away, once."""
        if current_run() is None:
            return await self.inner.pop_item()

        async def look(call: Call) -> Resolution:
            _, before, item = call.args
            return await self._look(before, before - 1, item)

        @tool(name="session.pop_item", reconcile=look, identity=_by_session)
        async def pop_item(session_id: str, before: int, item: Any) -> Any:
            return await self.inner.pop_item()

        before = await self._length()
        last = await self.get_items(1)
        return await pop_item(self.inner.session_id, before, last[-1] if last else None)

    async def clear_session(self) -> None:
        """Take all items away."""

        @tool(name="session.clear_session", after_crash="retry", identity=_by_session)
        async def clear_session(session_id: str) -> None:
            await self.inner.clear_session()

        await clear_session(self.inner.session_id)

    async def _length(self) -> int:
        @tool(name="session.length", after_crash="retry", identity=_by_session)
        async def length(session_id: str) -> int:
            return len(await self.inner.get_items())

        return await length(self.inner.session_id)

    async def _look(self, before: int, after: int, outcome: Any) -> Resolution:
        """Whether a write has taken place, which changes the number of items so."""
        there = len(await self.inner.get_items())
        if there == after:
            return Resolution.outcome(outcome)
        return Resolution.retry() if there == before else Resolution.unknown()


# What tells calls apart, in the order in which they are made: a session that others have changed
# meanwhile is no other one.


def _read_by(session_id: str, limit: int | None) -> Any:
    return [session_id, limit]


def _added_by(session_id: str, items: list[Any], before: int) -> Any:
    return [session_id, items]


def _by_session(session_id: str, *rest: Any) -> Any:
    return session_id


def recorded_session(session: Any) -> Any:
    """The session, recorded; None as it is. ValueError for one that does more than keep items."""
    if session is None or type(session) is RecordedSession:
        return session
    for method, why in (
        ("run_compaction", "it asks a model by itself, which would not be recorded"),
        ("_get_session_id", "the server holds it, and a lost request may have changed it"),
    ):
        if callable(getattr(session, method, None)):
            raise ValueError(f"a {type(session).__name__} cannot be recorded: {why}")
    return RecordedSession(session)
