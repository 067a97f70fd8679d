"""Stands for OpenAI and Anthropic: a server in this process, which answers by ``bank.TURNS``."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import bank


def start() -> str:
    """The URL of a server that works until the process ends."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Answers)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}"


class _Answers(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        turn = sum(one["role"] == "assistant" for one in asked["messages"])
        calls = bank.TURNS[turn] if turn < len(bank.TURNS) else []
        of_anthropic = self.path.endswith("/messages")
        reply = json.dumps(_message(turn, calls) if of_anthropic else _completion(turn, calls))
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(reply)))
        self.end_headers()
        self.wfile.write(reply.encode())

    def log_message(self, format: str, *args: Any) -> None:
        pass


def _completion(turn: int, calls: list[Any]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": None if calls else bank.ANSWER}
    if calls:
        message["tool_calls"] = [
            {
                "id": f"{turn}-{at}",
                "type": "function",
                "function": {"name": name, "arguments": json.dumps(given)},
            }
            for at, (name, given) in enumerate(calls)
        ]
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if calls else "stop"}
    kind = {"id": f"chat-{turn}", "object": "chat.completion", "created": 0, "model": "offline"}
    return {**kind, "choices": [choice]}


def _message(turn: int, calls: list[Any]) -> dict[str, Any]:
    content: list[dict[str, Any]] = [
        {"type": "tool_use", "id": f"{turn}-{at}", "name": name, "input": given}
        for at, (name, given) in enumerate(calls)
    ]
    return {
        "id": f"msg-{turn}",
        "type": "message",
        "role": "assistant",
        "model": "offline",
        "content": content or [{"type": "text", "text": bank.ANSWER}],
        "stop_reason": "tool_use" if calls else "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 1, "output_tokens": 1},
    }
