"""The example agent with a real client library, against an endpoint that is scripted."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.support.installed import skip_without

skip_without("openai")

EXAMPLES = Path(__file__).parents[2] / "examples"
HELD = 2  # the turn in which the agent is killed, while it waits for the answer

Calls = list[tuple[str, dict[str, str]]]
SCRIPT: list[Calls] = [
    [("list_documents", {}), ("read_document", {"name": "otters.txt"})],
    [("write_section", {"title": "Otters", "text": "They float."}), ("no_such_tool", {})],
    [("write_section", {"title": "More", "text": "They dive, too."})],
]
ANSWER = "Two sections are written."


def completion(turn: int) -> dict[str, Any]:
    """What the model says in a turn, as the API gives it."""
    message: dict[str, Any] = {"role": "assistant", "content": ANSWER}
    if turn < len(SCRIPT):
        message = {
            "role": "assistant",
            "content": None,
            "refusal": None,
            "tool_calls": [
                {
                    "id": f"call_{turn}_{i}",
                    "type": "function",
                    "function": {"name": name, "arguments": json.dumps(arguments)},
                }
                for i, (name, arguments) in enumerate(SCRIPT[turn])
            ],
        }
    reason = "tool_calls" if turn < len(SCRIPT) else "stop"
    return {
        "id": f"chatcmpl-{turn}",
        "object": "chat.completion",
        "created": 1,
        "model": "scripted",
        "choices": [{"index": 0, "message": message, "finish_reason": reason}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
    }


class Endpoint(ThreadingHTTPServer):
    """Keeps each request; the first one of turn HELD gets no answer."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.requests: list[dict[str, Any]] = []
        self.keys: set[str | None] = set()
        self.reached, self.killed = threading.Event(), threading.Event()

    @property
    def turns(self) -> list[int]:
        return [turn_of(request) for request in self.requests]


def turn_of(request: dict[str, Any]) -> int:
    return sum(message["role"] == "assistant" for message in request["messages"])


class Handler(BaseHTTPRequestHandler):
    server: Endpoint

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        turn = turn_of(request)
        self.server.requests.append(request)
        self.server.keys.add(self.headers["Authorization"])
        if turn == HELD and not self.server.killed.is_set():
            self.server.reached.set()
            self.server.killed.wait(60)
            return
        body = json.dumps(completion(turn)).encode()
        with suppress(OSError):
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def endpoint():
    with Endpoint() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.killed.set()
        server.shutdown()


def start(work: Path, endpoint: Endpoint) -> subprocess.Popen[str]:
    settings = {
        "AGENT_DOCUMENTS": str(work / "documents"),
        "AGENT_WORK": str(work),
        "OPENAI_BASE_URL": f"http://127.0.0.1:{endpoint.server_port}/v1",
        "OPENAI_API_KEY": "sk-test",
        "OPENAI_MODEL": "scripted",
        "NO_PROXY": "127.0.0.1",
        "PYTHONPATH": os.pathsep.join(part for part in sys.path if part),
    }
    return subprocess.Popen(
        [sys.executable, EXAMPLES / "agent.py"],
        env=os.environ | settings,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_killed_agent_does_not_ask_again_what_the_log_has(
    endpoint: Endpoint, tmp_path: Path
) -> None:
    (tmp_path / "documents").mkdir()
    (tmp_path / "documents" / "otters.txt").write_text("Otters float on their backs.")

    with start(tmp_path, endpoint) as first:
        try:
            assert endpoint.reached.wait(60)
        finally:
            first.kill()
    assert endpoint.turns == [0, 1, 2]
    endpoint.killed.set()

    with start(tmp_path, endpoint) as second:
        out, err = second.communicate(timeout=60)
    assert second.returncode == 0, err
    # Turn 2 was asked and not answered; 0 and 1 are not asked again.
    assert endpoint.turns == [0, 1, 2, 2, 3]
    assert endpoint.requests[2] == endpoint.requests[3]

    result = json.loads(out.splitlines()[-1])
    assert result["answer"] == ANSWER
    assert result["calls"]["write_section"] == 2
    report = (tmp_path / "report.md").read_text()
    assert re.findall(r"^## (.*)", report, re.MULTILINE) == ["Otters", "More"]

    done = subprocess_again(tmp_path, endpoint)
    assert json.loads(done.splitlines()[-1]) == result
    assert len(endpoint.requests) == 5


def subprocess_again(work: Path, endpoint: Endpoint) -> str:
    """What the agent prints when its run has ended already."""
    with start(work, endpoint) as process:
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    return out


def test_the_endpoint_gets_what_the_api_asks_for(endpoint: Endpoint, tmp_path: Path) -> None:
    (tmp_path / "documents").mkdir()
    endpoint.killed.set()
    subprocess_again(tmp_path, endpoint)
    assert endpoint.keys == {"Bearer sk-test"}
    first, second = endpoint.requests[:2]
    assert first["model"] == "scripted"
    tools = {tool["function"]["name"]: tool["function"] for tool in first["tools"]}
    assert list(tools) == ["list_documents", "read_document", "write_section", "send_mail"]
    assert tools["send_mail"]["parameters"]["required"] == ["to", "subject", "body"]
    assert tools["read_document"]["description"].startswith("Read a document")
    roles = [message["role"] for message in second["messages"]]
    assert roles == ["user", "assistant", "tool", "tool"]
    assert second["messages"][3]["tool_call_id"] == "call_0_1"
    # There is no such document: an error of a tool is for the model to know.
    assert "there is no document 'otters.txt'" in second["messages"][3]["content"]
