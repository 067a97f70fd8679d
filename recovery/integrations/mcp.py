"""MCP servers whose tools are called in a run, and recorded. See docs/providers.md."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Generic, TypeVar

from recovery import OutcomeUnknown
from recovery.errors import NoAnswerError
from recovery.integrations.framework_calls import as_call, checked, dumped
from recovery.integrations.versions import check_version

check_version("mcp", "2.0")

from mcp import Client, ClientSession, MCPError, types  # noqa: E402 - their version first

__all__ = ["RecordedClient"]

C = TypeVar("C", bound="Client | ClientSession")
META = "_meta"
# What reads, and the type of what it gives.
READS: dict[str, Any] = {
    "list_tools": types.ListToolsResult,
    "list_resources": types.ListResourcesResult,
    "list_resource_templates": types.ListResourceTemplatesResult,
    "list_prompts": types.ListPromptsResult,
    "read_resource": types.ReadResourceResult,
    "get_prompt": types.GetPromptResult,
    "complete": types.CompleteResult,
}
# Arguments that are of this process, and neither recorded nor compared.
OF_THE_PROCESS = ("read_timeout_seconds", "progress_callback", "cache_mode")
NO_ANSWER = (types.CONNECTION_CLOSED, types.REQUEST_TIMEOUT)


class ServerError(Exception):
    """An error of the protocol, as it is recorded: ``code``, ``message`` and ``data``. The caller
    of a tool gets the ``MCPError`` that it was."""


class RecordedClient(Generic[C]):
    """A ``Client`` or ``ClientSession`` of the MCP SDK, whose calls in a run are recorded.

    ``call_tool`` is a call of a tool that is named ``NAME.TOOL`` in the log. An elicitation or
    another request of the server in the middle of it is part of the call. What lists and reads is
    recorded too. All else (``ping``, subscriptions, notifications, attributes) is that of the
    client, and not recorded. Outside of a run it is the client. For async code.

    ``client``: a connected one. ``name``: of the server. It identifies the calls, so that it has to
    be the same in each process. ``tools``: options of its tools by their names, as
    ``recovery.tool`` takes them: ``{"search": {"after_crash": "retry"}, "pay": {"needs_approval":
    True}}``. A tool that is not named there is a side effect that parks the run when a crash leaves
    it in doubt. ``trust_read_only``: tools that the server calls read-only (``readOnlyHint``) are
    safe to repeat. The library does not check what the server declares. The hints are those of the
    last ``list_tools``.

    A side effect whose answer never came (the connection closed, or the request timed out) is in
    doubt at once. Where ``after_crash="report"`` says so, an OutcomeUnknown is the text of a result
    with ``is_error``.
    """

    def __init__(
        self,
        client: C,
        name: str,
        *,
        tools: Mapping[str, Mapping[str, Any]] | None = None,
        trust_read_only: bool = False,
    ) -> None:
        given: Any = (client, name)
        if not isinstance(given[0], Client | ClientSession):
            raise TypeError(f"RecordedClient takes a client of mcp, not {client!r:.80}")
        if not isinstance(given[1], str) or not name:
            raise TypeError(f"name is that of the server in the log, such as 'mail'; not {name!r}")
        self._client, self._name = client, name
        self._tools = {one: checked(one, options) for one, options in (tools or {}).items()}
        self._trusts, self._read_only = trust_read_only, set[str]()

    async def call_tool(
        self,
        name: str,
        arguments: dict[str, Any] | None = None,
        *,
        call_id: str = "",
        meta: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Any:
        """Call tool ``name`` of the server: what the client's ``call_tool`` returns.

        ``arguments``: of the tool. ``call_id``: the model's id of the call; it tells equal calls of
        a step apart. ``options`` are further ones of the client. ``meta`` is recorded, and not
        compared.
        """
        asked = {**(arguments or {}), **({META: dict(meta)} if meta is not None else {})}
        here = {one: options.pop(one) for one in OF_THE_PROCESS if one in options}
        if options:
            asked["_options"] = {key: _plain(value) for key, value in options.items()}
        settings = self._options_of(name)
        repeatable = settings.get("after_crash") == "retry"
        client: Any = self._client
        call = partial(client.call_tool, name, arguments, meta=meta, **options, **here)

        async def ask(**asked: Any) -> Any:
            try:
                return _plain(await call())
            except MCPError as exc:
                if exc.code in NO_ANSWER and not repeatable:
                    raise NoAnswerError(f"{name} of {self._name}: {exc}") from exc
                raise ServerError(exc.code, exc.message, exc.data) from exc

        return await self._made(f"{self._name}.{name}", ask, asked, call_id, settings, _tool_result)

    def _options_of(self, name: str) -> dict[str, Any]:
        options = dict(self._tools.get(name, {}))
        policies = "after_crash", "reconcile"
        if self._trusts and name in self._read_only and not any(one in options for one in policies):
            options["after_crash"] = "retry"
        return options

    async def _made(
        self,
        name: str,
        ask: Callable[..., Any],
        asked: dict[str, Any],
        call_id: str,
        options: dict[str, Any],
        kind: Callable[[Any], Any],
    ) -> Any:
        call = as_call(ask, name, {"identity": _without_meta, **options}, call_id)
        try:
            answer = await call(**asked)
        except ServerError as exc:
            raise MCPError(*exc.args) from exc
        return kind(answer)

    async def _read(self, method: str, *args: Any, **kwargs: Any) -> Any:
        function = getattr(self._client, method)
        named = dict(inspect.signature(function).bind(*args, **kwargs).arguments)
        asked = {key: _plain(one) for key, one in named.items() if key not in OF_THE_PROCESS}

        async def ask(**asked: Any) -> Any:
            try:
                return _plain(await function(*args, **kwargs))
            except MCPError as exc:
                raise ServerError(exc.code, exc.message, exc.data) from exc

        options = {"after_crash": "retry"}
        kind = READS[method].model_validate
        found = await self._made(f"{self._name}.{method}()", ask, asked, "", options, kind)
        if method == "list_tools":
            for one in found.tools:
                is_read_only = one.annotations is not None and one.annotations.read_only_hint
                (self._read_only.add if is_read_only else self._read_only.discard)(one.name)
        return found

    def __getattr__(self, name: str) -> Any:
        if name in READS and hasattr(self._client, name):
            return partial(self._read, name)
        found = getattr(self._client, name)
        if isinstance(found, ClientSession):
            return RecordedClient(
                found, self._name, tools=self._tools, trust_read_only=self._trusts
            )
        return found


def _without_meta(**asked: Any) -> Any:
    """What identifies a call."""
    return {key: value for key, value in asked.items() if key != META}


def _plain(value: Any) -> Any:
    if hasattr(value, "model_dump"):
        return dumped(value)
    if isinstance(value, Mapping):
        return {key: _plain(part) for key, part in value.items()}
    return value


def _tool_result(answer: Any) -> Any:
    """The result of a tool, from what the server said; or from what a person or a policy says."""
    if not isinstance(answer, dict):
        text = types.TextContent(type="text", text=str(answer))
        return types.CallToolResult(content=[text], is_error=isinstance(answer, OutcomeUnknown))
    asks = answer.get("resultType") == "input_required"
    return (types.InputRequiredResult if asks else types.CallToolResult).model_validate(answer)
