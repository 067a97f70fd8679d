"""OpenAI's client, whose requests in a run are recorded. See docs/providers.md."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeVar

from recovery.integrations.sdk_client import Json, Provider, Settings, recorded
from recovery.integrations.versions import check_version

check_version("openai", "2.0")

import openai  # noqa: E402 - its version first

__all__ = ["recorded_client"]

C = TypeVar("C", bound="openai.OpenAI | openai.AsyncOpenAI")


def recorded_client(
    client: C,
    *,
    after_crash: Literal["retry", "park"] | None = None,
    identity: Callable[[dict[str, Any]], Any] | None = None,
) -> C:
    """A copy of ``client``, of OpenAI, or of Azure, whose requests are recorded in a run.

    ``chat.completions``, ``completions``, ``responses``, ``embeddings`` and ``moderations``:
    ``create``, ``parse``, ``stream`` and the raw responses of these; and all that only reads. Each
    request is one call, with the retries of the client in it. Other requests raise a TypeError in a
    run. Outside of a run it is as the client that it was made of, and sends by that one's HTTP
    client.

    ``after_crash``: what to do when a crash leaves it unknown whether the provider got a request,
    see ``tool``. By default it is sent again. The run parks if the provider keeps more of it than
    the answer (``conversation``, ``background``, a container that is named). So it does if the
    provider calls tools by itself (MCP), and then the client does not retry by itself.
    ``identity``: what identifies a request, from its body, where the body has clocks or ids of the
    process in it.
    """
    if not isinstance(client, openai.OpenAI | openai.AsyncOpenAI):
        raise TypeError(f"recorded_client takes a client of openai, not {client!r:.80}")
    return recorded(client, Settings(_PROVIDER, after_crash, identity))


def _is_effect(request: Json) -> bool:
    """Whether the provider keeps more of it than the answer, or executes something."""
    if request.get("conversation") is not None or request.get("background"):
        return True
    return any(_has_effects(used) for used in request.get("tools") or ())


def _has_effects(used: Any) -> bool:
    """Whether a tool that the provider calls by itself may do something that stays."""
    match used:
        case {"type": "mcp"} | {"container": str()}:
            return True
    return False


def _usage(events: list[Json]) -> Any:
    for event in reversed(events):
        held = event.get("response") if isinstance(event.get("response"), dict) else event
        if isinstance(held, dict) and isinstance(held.get("usage"), dict):
            return held["usage"]
    return None


_PROVIDER = Provider(
    name="openai",
    calls={
        "/chat/completions": "openai.chat.completions",
        "/completions": "openai.completions",
        "/responses": "openai.responses",
        "/embeddings": "openai.embeddings",
        "/moderations": "openai.moderations",
    },
    is_effect=_is_effect,
    no_answer=(openai.APIConnectionError, openai.InternalServerError),
    usage=_usage,
    id_header="x-request-id",
)
