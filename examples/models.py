"""The model: an offline one that needs no key and no network, or any OpenAI-compatible endpoint.

With OPENAI_BASE_URL or OPENAI_API_KEY set it is the endpoint, OPENAI_MODEL says which model.
"""

from __future__ import annotations

import inspect
import json
import os
import re
import time
from collections.abc import Callable, Sequence
from typing import Any, cast

LATENCY_S = float(os.environ.get("AGENT_OFFLINE_LATENCY_S", "0.8"))
MODEL = os.environ.get("OPENAI_MODEL", "gpt-4.1-mini")
SECTIONS_PER_MAIL = 3
HEADINGS_MAX, SENTENCE_MAX = 6, 300


def is_offline() -> bool:
    """Whether the offline model answers."""
    return not (os.environ.get("OPENAI_BASE_URL") or os.environ.get("OPENAI_API_KEY"))


def ask(messages: Sequence[dict[str, Any]], tools: Sequence[Callable[..., Any]]) -> dict[str, Any]:
    """The model's next message, in the OpenAI chat format."""
    if is_offline():
        time.sleep(LATENCY_S)
        return decide(messages)
    return ask_endpoint(messages, tools)


def ask_endpoint(
    messages: Sequence[dict[str, Any]], tools: Sequence[Callable[..., Any]]
) -> dict[str, Any]:
    """Ask the endpoint, patiently: a model call that fails for good ends the run."""
    try:
        import openai  # noqa: PLC0415 - an extra
    except ImportError:
        raise RuntimeError("for an endpoint: pip install 'agent-eventlog[openai]'") from None
    key = os.environ.get("OPENAI_API_KEY") or "none"  # a local server wants none
    with openai.OpenAI(api_key=key, max_retries=6) as client:
        answer = client.chat.completions.create(
            model=MODEL,
            messages=cast(Any, list(messages)),
            tools=cast(Any, [describe(function) for function in tools]),
        )
    message = answer.choices[0].message.model_dump(exclude_none=True)
    return {"content": None} | {
        name: message[name] for name in ("role", "content", "tool_calls") if name in message
    }


def describe(function: Callable[..., Any]) -> dict[str, Any]:
    """A tool for the model: its name, docstring and parameters, all of them texts."""
    names = list(inspect.signature(function).parameters)
    properties = {name: {"type": "string"} for name in names}
    return {
        "type": "function",
        "function": {
            "name": function.__name__,
            "description": inspect.getdoc(function) or "",
            "parameters": {"type": "object", "properties": properties, "required": names},
        },
    }


def decide(messages: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The offline model: what to do next follows from the conversation, and from nothing else."""
    results = {m["tool_call_id"]: m["content"] for m in messages if m["role"] == "tool"}
    done: dict[str, list[tuple[dict[str, Any], str]]] = {}
    for message in messages:
        for call in message.get("tool_calls") or []:
            arguments = json.loads(call["function"]["arguments"])
            done.setdefault(call["function"]["name"], []).append((arguments, results[call["id"]]))
    if "list_documents" not in done:
        return _say(messages, ("list_documents", {}))
    names = [document["name"] for document in json.loads(done["list_documents"][0][1])]
    texts = {arguments["name"]: text for arguments, text in done.get("read_document", [])}
    written = len(done.get("write_section", []))
    progress = f"{written} of {len(names)} documents are in the report"
    asked = []
    # A mail about the last sections goes out while the next one is being written.
    mails_due = written // SECTIONS_PER_MAIL if written < len(names) else 0
    if len(done.get("send_mail", [])) < mails_due:
        asked.append(_mail("Progress", f"{progress}, the last one is {names[written - 1]}."))
    if written < len(texts):
        name = names[written]
        asked.append(("write_section", {"title": name, "text": summarise(texts[name])}))
    elif len(texts) < len(names):
        unread = names[len(texts) : len(texts) + 2]
        asked += [("read_document", {"name": name}) for name in unread]
    elif not any(arguments["subject"] == "Done" for arguments, _ in done.get("send_mail", [])):
        asked.append(_mail("Done", f"{progress}."))
    return _say(messages, *asked) if asked else {"role": "assistant", "content": f"{progress}."}


def summarise(text: str) -> str:
    """The first sentence and the headings of a text."""
    if text.startswith("error: "):
        return f"Could not be read: {text[:SENTENCE_MAX]}"
    prose = re.sub(r"^(```|~~~).*?^\1", "", text, flags=re.MULTILINE | re.DOTALL)
    headings = [line.strip("# ") for line in prose.splitlines() if re.match(r"#{1,6} ", line)]
    paragraphs = (" ".join(part.split()) for part in re.split(r"\n\s*\n", prose))
    paragraph = next((p for p in paragraphs if p and not re.match(r"[#|<!\[:>=-]", p)), "")
    sentence = re.split(r"(?<=[.!?])\s", paragraph, maxsplit=1)[0][:SENTENCE_MAX]
    lines = [sentence or "It has no text."]
    if headings:
        more = f" and {len(headings) - HEADINGS_MAX} more" if len(headings) > HEADINGS_MAX else ""
        lines.append(f"It is about: {'; '.join(h[:80] for h in headings[:HEADINGS_MAX])}{more}.")
    return "\n\n".join(lines)


def _mail(subject: str, body: str) -> tuple[str, dict[str, Any]]:
    return "send_mail", {"to": "team@example.org", "subject": subject, "body": body}


def _say(messages: Sequence[Any], *calls: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": f"call_{len(messages)}_{i}",
                "type": "function",
                "function": {"name": name, "arguments": json.dumps(arguments)},
            }
            for i, (name, arguments) in enumerate(calls)
        ],
    }
