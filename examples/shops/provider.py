"""Stands for OpenAI and Anthropic: a server in this process, which answers by ``bank.TURNS``."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from uuid import uuid4

import bank


def start() -> str:
    """The URL of a server that works until the process ends."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Answers)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}"


class _Answers(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        kind = "application/json"
        if "/chat/completions" in self.path:
            reply = json.dumps(_completion(asked["messages"]))
        elif asked.get("stream"):
            kind, reply = "text/event-stream", _events(_message(asked))
        else:
            reply = json.dumps(_message(asked))
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(reply)))
        self.end_headers()
        self.wfile.write(reply.encode())

    def log_message(self, format: str, *args: Any) -> None:
        pass


def _completion(messages: list[Any]) -> dict[str, Any]:
    turn = sum(one["role"] == "assistant" for one in messages)
    calls = bank.TURNS[turn] if turn < len(bank.TURNS) else []
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


def _left(messages: list[Any]) -> list[tuple[str, dict[str, Any]]]:
    """What is still to be called: after a crash, a session may lack some results of a turn."""
    blocks = [block for one in messages for block in one["content"] if isinstance(block, dict)]
    asked = {block["id"]: block for block in blocks if block["type"] == "tool_use"}
    done = [
        (
            asked[block["tool_use_id"]]["name"].rpartition("__")[2],
            asked[block["tool_use_id"]]["input"],
        )
        for block in blocks
        if block["type"] == "tool_result" and not block.get("is_error")
    ]
    turns = ([call for call in turn if call not in done] for turn in bank.TURNS)
    return next(filter(None, turns), [])


def _message(asked: dict[str, Any]) -> dict[str, Any]:
    prefix = "mcp__shop__" if asked.get("stream") else ""  # for the CLI of the Claude Agent SDK
    content: list[dict[str, Any]] = [
        {"type": "tool_use", "id": uuid4().hex, "name": prefix + name, "input": given}
        for name, given in _left(asked["messages"])
    ]
    return {
        "id": uuid4().hex,
        "type": "message",
        "role": "assistant",
        "model": "offline",
        "stop_reason": "tool_use" if content else "end_turn",
        "content": content or [{"type": "text", "text": bank.ANSWER}],
        "stop_sequence": None,
        "usage": {"input_tokens": 1, "output_tokens": 1},
    }


def _events(message: dict[str, Any]) -> str:
    """The same as a stream, with each block in one piece."""
    begun = {**message, "content": [], "stop_reason": None}
    events: list[dict[str, Any]] = [{"type": "message_start", "message": begun}]
    for at, block in enumerate(message["content"]):
        empty: dict[str, Any]
        if block["type"] == "text":
            empty, delta = {"text": ""}, {"type": "text_delta", "text": block["text"]}
        else:
            text = json.dumps(block["input"])
            empty, delta = {"input": {}}, {"type": "input_json_delta", "partial_json": text}
        started = {"index": at, "content_block": {**block, **empty}}
        events.append({"type": "content_block_start", **started})
        events.append({"type": "content_block_delta", "index": at, "delta": delta})
        events.append({"type": "content_block_stop", "index": at})
    ended = {"stop_reason": message["stop_reason"], "stop_sequence": None}
    events.append({"type": "message_delta", "delta": ended, "usage": {"output_tokens": 1}})
    events.append({"type": "message_stop"})
    return "".join(f"event: {one['type']}\ndata: {json.dumps(one)}\n\n" for one in events)
