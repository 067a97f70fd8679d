"""Checks a store on a server, for ``recovery doctor``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from recovery.cli.doctor_checks import versions
from recovery.cli.doctor_disk import Check
from recovery.stores.protocol import DescribesServer, RunQueue, RunStore
from recovery.text import count


def examine_server(store: RunStore) -> Iterator[Check]:
    """All checks, one after the other. Raises UnreachableError, or LogError for a server that is
    refused."""
    yield from versions()
    if isinstance(store, DescribesServer):
        for name, text, todo in store.describe():
            yield Check(name, "warning" if todo else "ok", text, todo)
    if isinstance(store, RunQueue):
        states: Counter[str] = Counter()
        after = ""
        while page := store.find(after=after):
            states.update(one.state or "saved" for one in page)
            after = page[-1].run_id
        told = ", ".join(f"{number:,} {state}" for state, number in sorted(states.items()))
        text = f"{count(states.total(), 'run')}{told and ': '}{told}"
        todo = "Decide about them: recovery runs." if states["in doubt"] else ""
        yield Check("runs", "warning" if todo else "ok", text, todo)
