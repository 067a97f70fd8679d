"""A real agent that survives being killed: it reads documents, writes a report, and sends mails.

Copy from here. What makes it recoverable is marked (1) to (5); the rest is what any agent looks
like: a loop over chat messages and tool calls. ``demo.py`` runs it, and kills it again and again.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import smtplib
import threading
import uuid
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import documents
import models
import report

from recovery import (
    Call,
    CheckpointStore,
    PermanentError,
    RecoverableAgent,
    Resolution,
    Run,
    current_call,
    tool,
)

DOCUMENTS = Path(os.environ.get("AGENT_DOCUMENTS", "docs"))  # what to read
WORK = Path(os.environ.get("AGENT_WORK", "agent-work"))  # where the log and the report go
SMTP = ("127.0.0.1", int(os.environ.get("AGENT_SMTP_PORT", "2525")))
STEPS_MAX = 500

TASK = (
    "Read every document that list_documents gives. For each one add a section to the report with "
    "write_section: its name as the title, what it says as the text. After every third section "
    "send a short mail about the progress to team@example.org, and one when you are done. Then "
    "answer with one sentence."
)


# (1) A tool that does no harm when it is run twice says so.
@tool(after_crash="retry")
def list_documents() -> list[dict[str, Any]]:
    """List the documents: name and size in bytes."""
    return documents.listing(DOCUMENTS)


@tool(after_crash="retry")
def read_document(name: str) -> str:
    """Read a document: its text, or the beginning if it is long."""
    return documents.read(DOCUMENTS, name)


# (2) A side effect carries the call's idempotency key to the outside world. When a crash has left
# it unknown whether the effect took place, its reconcile function goes and looks for that key.
def find_section(call: Call) -> Resolution:
    if call.idempotency_key in (key for key, _ in report.sections(WORK / "report.md")):
        return Resolution.outcome(f"section {call.idempotency_key}")
    return Resolution.retry()


@tool(reconcile=find_section)
def write_section(title: str, text: str) -> str:
    """Add a section to the report."""
    key = idempotency_key()
    with _writing:
        report.add(WORK / "report.md", key, title, text)
    return f"section {key}"


def find_mail(call: Call) -> Resolution:
    # This server tells what has arrived when asked to verify a Message-ID; of others ask the
    # mailbox by IMAP, or the provider's API by its idempotency key.
    message_id = f"{call.idempotency_key}@agent.invalid"
    with smtplib.SMTP(*SMTP, timeout=30) as server:
        server.ehlo()
        code, _ = server.verify(message_id)
    if code == 250:
        return Resolution.outcome(f"mail {message_id}")
    return Resolution.retry() if code == 550 else Resolution.unknown()


@tool(reconcile=find_mail)
def send_mail(to: str, subject: str, body: str) -> str:
    """Send a mail."""
    message_id = f"{idempotency_key()}@agent.invalid"
    mail = EmailMessage()
    mail["From"], mail["To"], mail["Subject"] = "agent@example.org", to, subject
    mail["Message-ID"] = f"<{message_id}>"
    mail.set_content(body)
    with smtplib.SMTP(*SMTP, timeout=30) as server:
        server.send_message(mail)
    return f"mail {message_id}"


# (3) The model is a tool like any other: what it answered is in the log, and never paid for twice.
@tool(after_crash="retry")
def ask_model(messages: list[Any]) -> dict[str, Any]:
    return models.ask(messages, list(TOOLS.values()))


# (4) The agent is an ordinary function. run.state and run.messages are what it carries from step to
# step; run.call executes a tool, or serves what the log says that it returned.
async def write_report(run: Run) -> dict[str, Any]:
    run.messages.append({"role": "user", "content": run.task})
    async for step in run.steps():
        if step > STEPS_MAX:
            raise PermanentError(f"not done after {STEPS_MAX} steps")
        reply = await run.call(ask_model, run.messages)
        run.messages.append(reply)
        calls = reply.get("tool_calls") or []
        if not calls:
            return {"answer": reply["content"], "calls": run.state}
        run.messages += await asyncio.gather(*(perform(run, call) for call in calls))
        for call in calls:
            name = call["function"]["name"]
            run.state[name] = run.state.get(name, 0) + 1
    raise AssertionError("run.steps() does not end")


async def perform(run: Run, call: dict[str, Any]) -> dict[str, Any]:
    """Do what the model asks for; what goes wrong is for the model to know."""
    try:
        function = TOOLS[call["function"]["name"]]
        arguments = json.loads(call["function"]["arguments"])
        result = await run.call(function, **arguments, call_id=call["id"])
    except Exception as exc:
        result = f"error: {type(exc).__name__}: {exc}"
    content = result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)
    return {"role": "tool", "tool_call_id": call["id"], "content": content}


def idempotency_key() -> str:
    """The same for every attempt at the call that is being made; outside of a run a fresh one."""
    call = current_call()
    return call.idempotency_key if call is not None else uuid.uuid4().hex


def main() -> None:
    logging.basicConfig(format="%(message)s")
    logging.getLogger("recovery").setLevel(logging.INFO)  # says what each recovery found
    # (5) The same call starts the run, and resumes it after a crash, and gives its result again
    # when it has ended.
    agent = RecoverableAgent(write_report, CheckpointStore(WORK / "runs"), checkpoint_every_n=3)
    done = asyncio.run(agent.run_with_recovery(TASK, run_id="report"))
    print(done["report"])
    print(json.dumps(done["result"], ensure_ascii=False))


TOOLS = {f.__name__: f for f in (list_documents, read_document, write_section, send_mail)}
_writing = threading.Lock()  # the tools of one step run at the same time

if __name__ == "__main__":
    main()
