"""Anthropic's client, whose requests in a run are recorded. See docs/providers.md."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeVar

from recovery.integrations.sdk_client import Json, Provider, Settings, recorded
from recovery.integrations.versions import check_version

check_version("anthropic", "1.0")

import anthropic  # noqa: E402 - its version first

__all__ = ["recorded_client"]

C = TypeVar("C", bound="anthropic.Anthropic | anthropic.AsyncAnthropic")


def recorded_client(
    client: C,
    *,
    after_crash: Literal["retry", "park"] | None = None,
    identity: Callable[[dict[str, Any]], Any] | None = None,
) -> C:
    """A copy of ``client``, of Anthropic whose requests are recorded in a run.

    ``messages`` and ``beta.messages``: ``create``, ``stream``, ``parse``, ``tool_runner`` and the
    raw responses of these; ``count_tokens``; and all that only reads. Each request is one call,
    with the retries of the client in it. Other requests raise a TypeError in a run. Outside of a
    run it is as the client that it was made of, and sends by that one's HTTP client.

    ``after_crash``: what to do when a crash leaves it unknown whether the provider got a request,
    see ``tool``. By default it is sent again, except where the provider executes something whose
    effects stay (``container``, ``mcp_servers``). Then the run parks, and the client does not retry
    by itself. ``identity``: what identifies a request, from its body, where the body has clocks or
    ids of the process in it.
    """
    if not isinstance(client, anthropic.Anthropic | anthropic.AsyncAnthropic):
        raise TypeError(f"recorded_client takes a client of anthropic, not {client!r:.80}")
    return recorded(client, Settings(_PROVIDER, after_crash, identity))


def _is_effect(request: Json) -> bool:
    """Whether the provider keeps more of it than the answer, or executes something."""
    return bool(request.get("container") or request.get("mcp_servers"))


def _usage(events: list[Json]) -> Any:
    """The first event has the input's, and a later one the output's."""
    used: Json = {}
    for event in events:
        message = event.get("message")
        for held in (
            message.get("usage") if isinstance(message, dict) else None,
            event.get("usage"),
        ):
            if isinstance(held, dict):
                used |= {name: value for name, value in held.items() if value is not None}
    return used or None


_PROVIDER = Provider(
    name="anthropic",
    calls={
        "/v1/messages": "anthropic.messages",
        "/v1/messages/count_tokens": "anthropic.count_tokens",
        "/v1/complete": "anthropic.completions",
    },
    is_effect=_is_effect,
    no_answer=(anthropic.APIConnectionError, anthropic.InternalServerError),
    usage=_usage,
    id_header="request-id",
)
