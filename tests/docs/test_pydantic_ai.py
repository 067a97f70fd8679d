"""The programs of docs/pydantic-ai.md run, with a model that needs no network."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.support.pages import blocks, page_text, run_page

pytest.importorskip("pydantic_ai")

from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import FunctionModel

import recovery.integrations.pydantic_ai as integration
from recovery.errors import WaitingError
from recovery.integrations.pydantic_ai.policies import ToolPolicy

PAGE = "pydantic-ai.md"


def ask(messages: Any, info: Any) -> Any:
    """Calls every tool in turn, and then answers."""
    called = {part.tool_name for one in messages for part in one.parts if hasattr(part, "args")}
    for tool in info.function_tools:
        if tool.name not in called:
            given = dict.fromkeys(tool.parameters_json_schema["properties"], 1)
            given |= {name: "x" for name in given if name in ("to", "query", "question", "city")}
            return ModelResponse([ToolCallPart(tool.name, given)])
    return ModelResponse([TextPart("done")])


def test_the_page_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"offline": FunctionModel(ask), "__name__": "__main__"}
    for text in blocks(PAGE):
        run_page(PAGE, [text.replace('"openai:gpt-5.2"', "offline")], names)
    assert capsys.readouterr().out == "done\n"

    store = names["both"].store
    with pytest.raises(WaitingError):
        asyncio.run(waits(names, "two"))
    (request,) = store.run("two").pending()
    assert (request.tool, request.kwargs) == ("refund.approval", {"cents": 1})
    store.run("two").approve(request, who="ann")
    assert asyncio.run(waits(names, "two")) == ["done", "done"]
    called = [one.tool for one in store.run("two").events(until="now") if one.kind == "call"]
    assert {"pay", "search", "book", "refund", "ask_expert", "expert.model"} <= {*called}

    assert asyncio.run(said(names["guide"], "guide")) == "done"


async def waits(names: dict[str, Any], run_id: str) -> Any:
    agent = names["RecoverableAgent"](names["two_prompts"], "runs", park_after_s=0)
    return (await agent.run_with_recovery("Go", run_id))["result"]


async def said(agent: Any, run_id: str) -> Any:
    return (await integration.recoverable(agent, "runs").run_with_recovery("Go", run_id))["result"]


def test_every_option_is_on_the_page() -> None:
    text = page_text(PAGE)
    for name in ToolPolicy.__annotations__:
        assert name in text, name
