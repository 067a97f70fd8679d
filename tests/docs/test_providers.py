"""Each Python block of docs/providers.md is a program: it runs with providers in this process."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp.server.mcpserver import MCPServer

import recovery.integrations.anthropic
import recovery.integrations.mcp
import recovery.integrations.openai
from tests.support.pages import blocks, page_text
from tests.support.providers import Provider, message

PAGE = "providers.md"
BLOCKS = blocks(PAGE)
SAID = ["It is warm in Oslo.", "hello", "[{'result': 'found invoices'}, False]"]


def post_office() -> MCPServer:
    server = MCPServer("post office")

    @server.tool()
    def search(what: str) -> str:
        return f"found {what}"

    @server.tool()
    def send(to: str) -> str:
        return f"sent to {to}"

    return server


# What a program connects to, in place of the world.
FAKES = {
    "anthropic.AsyncAnthropic()": "PROVIDER.async_anthropic_client()",
    "openai.OpenAI()": "PROVIDER.openai_client()",
    'Client("http://localhost:8000/mcp")': "Client(SERVER)",
}


def test_the_page_has_as_many_programs() -> None:
    assert len(BLOCKS) == len(SAID)


@pytest.mark.parametrize("at", range(len(SAID)))
def test_a_program_of_the_page_runs(
    at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    provider, program = Provider(), BLOCKS[at]
    assert any(one in program for one in FAKES)
    for one, other in FAKES.items():
        program = program.replace(one, other)
    if at == 0:
        use = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Oslo"}}
        provider.next = [
            lambda body: httpx2.Response(200, json=message(use, stop_reason="tool_use")),
            lambda body: httpx2.Response(200, json=message("It is warm in Oslo.")),
        ]
    (tmp_path / "program.py").write_text(program, encoding="utf-8")
    names = {"PROVIDER": provider, "SERVER": post_office()}
    runpy.run_path("program.py", names, "__main__")
    assert capsys.readouterr().out.strip() == SAID[at]


@pytest.mark.parametrize("name", ["openai", "anthropic", "mcp"])
def test_every_public_name_is_described(name: str) -> None:
    module: Any = getattr(recovery.integrations, name)
    for one in module.__all__:
        assert getattr(module, one).__doc__
        assert one in page_text(PAGE)
