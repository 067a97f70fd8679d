"""Agents of the Agent Framework with a model that needs no network, and their lives."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from agent_framework import (
    Agent,
    BaseChatClient,
    ChatMiddlewareLayer,
    ChatResponse,
    ChatResponseUpdate,
    Content,
    FunctionInvocationContext,
    FunctionInvocationLayer,
    Message,
)
from agent_framework import tool as their_tool

from recovery import CheckpointStore, Run
from recovery.integrations.agent_framework import DRAWN, approvals, recorded
from recovery.journal.events import CallIntended
from tests.support import outside
from tests.support.framework_lives import (
    AGAIN,
    ended,
    fails_at_first,
    keep_request,
    look,
    pay,
    requests,
    tip,
)
from tests.support.kill_sweep import RUNS
from tests.support.lives import recorded as events

Turn = Callable[[list[Message]], list[Content]]


def calls(call_id: str, name: str, **arguments: Any) -> Content:
    return Content.from_function_call(call_id, name, arguments=json.dumps(arguments))


def says(text: str) -> Content:
    return Content.from_text(text)


class FakeClient(FunctionInvocationLayer, ChatMiddlewareLayer, BaseChatClient):
    """Answers a request by the number of answers in it. ``seen``: what it was asked.

    ``place``: where requests are written down; its answer must not be in the log then.
    """

    def __init__(self, turns: list[Turn], name: str = "shop", place: Path | None = None) -> None:
        super().__init__()
        self.model, self.turns, self.place = name, turns, place
        self.seen: list[Any] = []

    def _inner_get_response(
        self, *, messages: Any, stream: bool, options: Any, **kwargs: Any
    ) -> Any:
        turn = sum(one.role == "assistant" for one in messages)
        self._keep(list(messages), options)
        contents, used = self.turns[turn](list(messages)), {"input_token_count": 10 + turn}
        if stream:
            return self._build_response_stream(_streamed(contents, used))

        async def respond() -> ChatResponse:
            message = Message("assistant", contents, message_id=f"{self.model} {turn}")
            return ChatResponse(messages=message, usage_details=used, finish_reason="stop")

        return respond()

    def _keep(self, messages: list[Message], options: Any) -> None:
        body = {
            "messages": [one.to_dict() for one in messages],
            "instructions": options.get("instructions"),
            "tools": [one.name for one in options.get("tools") or ()],
        }
        body = without_drawn(body)
        self.seen.append(body)
        if self.place is not None:
            keep_request(self.place, [self.model, body])


async def _streamed(contents: list[Content], used: Any) -> AsyncIterator[ChatResponseUpdate]:
    for one in contents:
        if one.type == "text":
            for word in one.text.split(" "):
                yield ChatResponseUpdate(contents=[says(f"{word} ")], role="assistant")
        else:
            text = one.arguments
            for name, part in ((one.name, text[:4]), ("", text[4:])):
                call = Content.from_function_call(one.call_id, name, arguments=part)
                yield ChatResponseUpdate(contents=[call], role="assistant")
    usage = Content.from_usage(used)
    yield ChatResponseUpdate(contents=[usage], role="assistant", finish_reason="stop")


def without_drawn(value: Any) -> Any:
    """Without ids that the framework draws in each process: numbered in the order of a request."""
    numbers: dict[str, str] = {}
    text = DRAWN.sub(
        lambda of: numbers.setdefault(of[0], f"id {len(numbers)}"), json.dumps(value, default=str)
    )
    return json.loads(text)


# -- the tools


def search(query: str) -> list[str]:
    """Search the catalogue."""
    fails_at_first()
    return [query, "cup"]


def weather(city: str) -> str:
    """Have the model try again, for it wants another city."""
    if city == "nowhere":
        raise ValueError("there is no such city")
    return outside.did(f"weather {city}", "sunny")


async def draw(what: str) -> Content:
    """Draw a picture."""
    return Content.from_data(what.encode(), "image/png")


async def count(ctx: FunctionInvocationContext, item: str) -> int:
    """Count what is in store; takes the framework's context."""
    assert ctx.function.name == "count"
    return int(outside.did(f"count {item}", "3"))


@their_tool(approval_mode="always_require")
def refund(cents: int) -> str:
    """Refund; the framework asks for an approval."""
    return outside.did(f"refund {cents}", "refunded")


POLICIES: dict[str, Any] = {
    "search": AGAIN,
    "draw": {"after_crash": "retry"},
    "tip": {"needs_approval": True},
    "expert": {"after_crash": "retry"},
}

SHOP: list[Turn] = [
    lambda _: [
        says("Let me see."),
        calls("c1", "search", query="tea"),
        calls("c2", "pay", cents=5, to="ann"),
        calls("c3", "pay", cents=5, to="ann"),
        calls("c4", "weather", city="nowhere"),
    ],
    lambda _: [
        calls("c5", "refund", cents=3),
        calls("c6", "count", item="tea"),
        calls("c10", "weather", city="Bonn"),
    ],
    lambda _: [calls("c7", "tip", cents=1), calls("c8", "expert", task="why?")],
    lambda _: [calls("c9", "draw", what="tea")],
    lambda _: [says("all is well")],
]
EXPERT: list[Turn] = [lambda _: [calls("e1", "look")], lambda _: [says("because")]]


def shop(place: Path) -> Agent:
    expert = Agent(
        FakeClient(EXPERT, "expert", place), name="expert", tools=[look], middleware=recorded()
    )
    return Agent(
        FakeClient(SHOP, "shop", place),
        name="shop",
        instructions="Sell tea.",
        tools=[search, pay, tip, weather, draw, count, refund, expert.as_tool()],
        middleware=recorded(tools=POLICIES),
    )


# -- their lives


async def plainly(agent: Agent, given: Any, session: Any) -> Any:
    return await agent.run(given, session=session)


async def streamed(agent: Agent, given: Any, session: Any) -> Any:
    stream = agent.run(given, session=session, stream=True)
    texts = [update.text async for update in stream]
    answer = await stream.get_final_response()
    assert "".join(texts).split() == answer.text.split()
    return answer


def live(ask: Any) -> Callable[[Path], Any]:
    """A life of a process that runs the agent; what must be as in the run that nobody killed."""

    def lives(place: Path) -> Any:
        async def sell(run: Run) -> Any:
            agent = shop(place)
            session = agent.create_session(session_id=run.uuid())
            told = [await ask(agent, run.task, session)]
            while told[-1].user_input_requests:
                told.append(await ask(agent, await approvals(told[-1]), session))
            kept = session.to_dict()
            del kept["session_id"]  # random in each run
            answers = [
                [
                    [message.to_dict() for message in answer.messages],
                    dict(answer.usage_details or {}),
                    answer.finish_reason,
                ]
                for answer in told
            ]
            return without_drawn([answers, kept, told[-1].text, run.usage().input_tokens])

        result = ended(place, sell)["result"]
        asked = [
            without_drawn(one.args[0][0])
            for one in events(CheckpointStore(place / RUNS), CallIntended)
            if one.tool == "model"
        ]
        return {"result": result, "bodies": requests(place), "recorded": asked}

    return lives


async def _warm() -> None:
    """What each process would do once, so that forked ones need not."""
    agent = Agent(FakeClient([lambda _: [says("warm")]]), tools=[pay], middleware=recorded())
    await agent.run("warm")
    await agent.run("warm", stream=True).get_final_response()


asyncio.run(_warm())
