"""An agent of Pydantic AI: killed between a payment and its record, it pays once.

    python examples/pydantic_ai_shop.py [directory]

It needs no network: a function stands in for the model. The first run of this program dies while it
pays. The next process asks the bank about the payment in doubt, and waits for an approval.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from pydantic_ai import Agent, ModelRetry
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from recovery import CheckpointStore, InDoubtError, RecoverableAgent, Resolution, current_call
from recovery.errors import WaitingError
from recovery.integrations.pydantic_ai import EventLogDurability, ToolPolicy, recoverable

PLACE = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp())
TURNS: list[list[tuple[str, dict[str, Any]]]] = [
    [("find", {"what": "tea"}), ("find", {"what": "te"})],
    [("pay", {"cents": 500, "to": "ann"}), ("find", {"what": "cup"})],
    [("refund", {"cents": 100})],
]
STOCK = {"tea": 500, "cup": 300}


def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """The model: it says what it is made to say, a turn for each of its answers."""
    turn = sum(isinstance(one, ModelResponse) for one in messages)
    if turn == len(TURNS):
        return ModelResponse([TextPart("Tea is paid, and a part is refunded.")])
    return ModelResponse(
        [
            ToolCallPart(name, given, tool_call_id=f"call-{turn}-{at}")
            for at, (name, given) in enumerate(TURNS[turn])
        ]
    )


agent = Agent(FunctionModel(model), name="shop", capabilities=[EventLogDurability()])


@agent.tool_plain(metadata={"recovery": ToolPolicy(after_crash="retry")})
async def find(what: str) -> int:
    """The price of an article."""
    if what not in STOCK:
        raise ModelRetry(f"there are {', '.join(STOCK)}")
    return STOCK[what]


@agent.tool_plain
async def pay(cents: int, to: str) -> str:
    """Pay; the first time, the process dies right after the bank has the money."""
    call = current_call()
    assert call is not None
    first = not (PLACE / "bank").exists()
    with (PLACE / "bank").open("a") as bank:
        bank.write(f"{call.idempotency_key} {cents} to {to}\n")
    if first:
        os._exit(1)
    return "paid"


@agent.tool_plain(requires_approval=True)
async def refund(cents: int) -> str:
    """Refund a part; a person has to approve it."""
    return f"refunded {cents}"


store = CheckpointStore(PLACE / "runs")
shop: RecoverableAgent[Any] = recoverable(agent, store, park_after_s=0)


async def life() -> None:
    """The run, and what people do when it waits for them."""
    run = store.run("order-42")
    while True:
        try:
            done = await shop.run_with_recovery("Buy tea!", run.run_id)
        except InDoubtError:
            for call in run.status().in_doubt:
                paid = call.idempotency_key in (PLACE / "bank").read_text()
                print(f"in doubt: {call.tool}; the bank says: {'paid' if paid else 'not paid'}")
                run.resolve(call, Resolution.outcome("paid") if paid else Resolution.retry())
        except WaitingError:
            for request in run.pending():
                print(f"approved: {request.tool} {request.kwargs}")
                run.approve(request, who="ann")
        else:
            return print(done["result"])


if __name__ == "__main__":
    if not (PLACE / "bank").exists():
        if os.fork() == 0:  # the process that dies
            asyncio.run(life())
        os.wait()
    asyncio.run(life())
    print(f"payments: {len((PLACE / 'bank').read_text().splitlines())}")
