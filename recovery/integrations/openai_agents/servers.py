"""MCP servers whose answers are recorded."""

from __future__ import annotations

import functools
import inspect
from typing import Any

from agents.mcp import MCPServer
from mcp import types

from recovery import Run, current_run, tool
from recovery.integrations.framework_calls import as_call, dumped
from recovery.integrations.openai_agents.proxy import Proxy

# What reads, and the type of what it gives.
READS: dict[str, Any] = {
    "get_prompt": types.GetPromptResult,
    "list_prompts": types.ListPromptsResult,
    "list_resources": types.ListResourcesResult,
    "list_resource_templates": types.ListResourceTemplatesResult,
    "read_resource": types.ReadResourceResult,
}


def _by_arguments(arguments: Any, meta: Any = None) -> Any:
    return arguments


def _by_all(*given: Any, **named: Any) -> Any:
    return [*given, *map(list, named.items())]


class RecordedServer(Proxy):
    """An MCP server. Its calls have the names ``SERVER.TOOL`` in the log.

    A call of a tool may have effects, and is in doubt after a crash; what only reads is made again.
    """

    async def call_tool(
        self, tool_name: str, arguments: dict[str, Any] | None, *more: Any, **named: Any
    ) -> Any:
        """Call a tool, or serve what it has answered."""
        run, inner = current_run(), self.inner
        if not isinstance(run, Run):
            return await inner.call_tool(tool_name, arguments, *more, **named)

        # What goes along (`_meta`) may be of this process, such as the id of a trace.
        @tool(name=f"{inner.name}.{tool_name}", identity=_by_arguments)
        async def call(arguments: Any, meta: Any = None) -> Any:
            return dumped(await inner.call_tool(tool_name, arguments, *more, **named))

        meta = more[0] if more else named.get("meta")
        return types.CallToolResult.model_validate(await run.call(call, arguments, meta))

    async def list_tools(self, *context: Any, **named: Any) -> Any:
        """The tools as they were when the run first asked."""
        run, inner = current_run(), self.inner
        if not isinstance(run, Run):
            return await inner.list_tools(*context, **named)

        @tool(name=f"{inner.name}.list_tools", after_crash="retry", identity=lambda: None)
        async def list_tools() -> Any:
            return [dumped(one) for one in await inner.list_tools(*context, **named)]

        return [types.Tool.model_validate(one) for one in await run.call(list_tools)]

    def __getattr__(self, name: str) -> Any:
        found = super().__getattr__(name)
        return functools.partial(self._read, name, found) if name in READS else found

    async def _read(self, method: str, ask: Any, *args: Any, **kwargs: Any) -> Any:
        """What the server said when the run first asked."""
        if not isinstance(current_run(), Run):
            return await ask(*args, **kwargs)

        async def read(*given: Any, **named: Any) -> Any:
            return dumped(await ask(*args, **kwargs))

        asked = inspect.signature(ask).bind(*args, **kwargs)
        asked.apply_defaults()
        options = {"after_crash": "retry", "identity": _by_all}
        call = as_call(read, f"{self.inner.name}.{method}", options)
        return READS[method].model_validate(await call(*asked.args, **asked.kwargs))


def recorded_server(server: MCPServer) -> Any:
    """The server, recorded."""
    return server if type(server) is RecordedServer else RecordedServer(server)
