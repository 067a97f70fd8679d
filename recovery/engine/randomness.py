"""Makes random numbers and ids, with modules that few programs need: imported at first use."""

from __future__ import annotations


def a_number() -> float:
    """A random number in [0, 1)."""
    import random  # noqa: PLC0415 - only where it is needed

    return random.random()


def an_id() -> str:
    """A new UUID."""
    import uuid  # noqa: PLC0415 - as above

    return str(uuid.uuid4())
