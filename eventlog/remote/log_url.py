"""Names a log on a server by a URL, as messages and commands show it."""

from __future__ import annotations


def url_of(address: str, name: str) -> str:
    """The URL of a log in the store at ``address``."""
    base, mark, query = address.partition("?")
    return f"{base}/{name}{mark}{query}"
