"""Two agents of the OpenAI Agents SDK, killed in the middle of a payment, and resumed.

    python examples/openai_agents.py [DIRECTORY] [--die]

``--die`` kills the process right after the payment. Run it again without: the payment is found at
the bank and not made again, and no model is asked twice. Or resume it by
``recovery resume order-42 --agent openai_agents:agent --store DIRECTORY``, in examples/.

Needs ``pip install 'agent-eventlog[openai-agents]'``, and no network: the model is a small function
of its input. Give the agents ``model="gpt-5"`` in place of it for a real one.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from agents import Agent, Model, ModelResponse, Usage, function_tool, set_trace_processors
from openai.types.responses import (
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
)

from recovery import Call, CheckpointStore, RecoverableAgent, Resolution, Run, current_call, tool
from recovery.integrations.openai_agents import Runner

PLACE = Path(next((arg for arg in sys.argv[1:] if arg[0] != "-"), "openai-agents-runs"))
BANK = Path(os.environ.get("EXAMPLE_BANK", PLACE)) / "payments"  # the outside world


@function_tool
@tool(after_crash="retry")
def price(item: str) -> int:
    """The price of an item in cents."""
    return 100 * len(item)


def find_payment(call: Call) -> Resolution:
    """What the bank knows of a payment that a crash has cut short."""
    if BANK.exists() and call.idempotency_key in BANK.read_text():
        return Resolution.outcome("paid")
    return Resolution.retry()


@function_tool
@tool(reconcile=find_payment)
def pay(cents: int) -> str:
    """Pay."""
    call = current_call()
    assert call is not None
    BANK.parent.mkdir(parents=True, exist_ok=True)
    with BANK.open("a") as bank:
        bank.write(f"{call.idempotency_key} {cents}\n")
    if "--die" in sys.argv:
        os.kill(os.getpid(), signal.SIGKILL)
    return "paid"


class Offline(Model):
    """Answers by what is in its input."""

    async def get_response(
        self, system_instructions: str | None, input: Any, *args: Any, **kwargs: Any
    ) -> ModelResponse:
        print(f"model: {system_instructions}")
        items = [] if isinstance(input, str) else input
        done = {one["call_id"]: one["output"] for one in items if "output" in one}
        match len(done):
            case 0:
                output: Any = _call("price", "call_1", item="shoes")
            case 1:
                output = _call("transfer_to_cashier", "call_2")
            case 2:
                output = _call("pay", "call_3", cents=int(done["call_1"]))
            case _:
                output = _text(f"The shoes are {done['call_3']}.")
        used = Usage(requests=1, input_tokens=100, output_tokens=10, total_tokens=110)
        return ModelResponse(output=[output], usage=used, response_id=None)

    def stream_response(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        raise NotImplementedError


def _call(name: str, call_id: str, **arguments: Any) -> ResponseFunctionToolCall:
    text = json.dumps(arguments)
    return ResponseFunctionToolCall(
        arguments=text, call_id=call_id, name=name, type="function_call"
    )


def _text(text: str) -> ResponseOutputMessage:
    part = ResponseOutputText(annotations=[], text=text, type="output_text")
    return ResponseOutputMessage(
        id="1", content=[part], role="assistant", status="completed", type="message"
    )


set_trace_processors([])  # else the SDK sends traces to OpenAI
cashier = Agent("cashier", instructions="Take the money.", model=Offline(), tools=[pay])
clerk = Agent("clerk", instructions="Serve.", model=Offline(), tools=[price], handoffs=[cashier])


async def shop(run: Run) -> str:
    """The agent function: what it calls is recorded."""
    result = await Runner.run(clerk, run.task)
    return str(result.final_output)


agent = RecoverableAgent(shop, CheckpointStore(PLACE))

if __name__ == "__main__":
    ended = asyncio.run(agent.run_with_recovery("I want shoes.", "order-42"))
    print(ended["result"])
    print("payments:", len(BANK.read_text().splitlines()))
