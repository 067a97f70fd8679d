"""Agents of Google's ADK with a model that needs no network, and their lives."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from google.adk.agents import Agent
from google.adk.agents.run_config import RunConfig, StreamingMode
from google.adk.apps import App
from google.adk.models import BaseLlm, LlmRequest, LlmResponse
from google.adk.plugins import ReflectAndRetryToolPlugin
from google.adk.runners import InMemoryRunner
from google.adk.tools import FunctionTool, ToolContext
from google.adk.tools.agent_tool import AgentTool
from google.genai import types

from recovery import CheckpointStore, Run
from recovery.integrations.google_adk import EventLogPlugin, RecordedLlm, approvals
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
from tests.support.lives import recorded as events_of

Turn = Callable[[], list[types.Part]]
# Of events: of the process that made them.
OF_PROCESS = {"id", "timestamp", "invocation_id"}
CONFIRMATION = re.compile("adk-[0-9a-f-]{36}")


def calls(tool: str, **arguments: Any) -> types.Part:
    return types.Part(function_call=types.FunctionCall(name=tool, args=arguments))


def says(text: str) -> types.Part:
    return types.Part(text=text)


class FakeLlm(BaseLlm):
    """Answers a request by the number of answers in it. ``seen``: what it was asked.

    ``place``: where requests are written down; their answers must not be in the log then.
    """

    turns: Any
    place: Any = None
    seen: Any = None

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncIterator[LlmResponse]:
        turn = sum(one.role == "model" for one in llm_request.contents)
        self._keep(llm_request)
        parts = self.turns[turn]()
        used = types.GenerateContentResponseUsageMetadata(
            prompt_token_count=10 + turn, candidates_token_count=1
        )
        if stream:
            for part in parts:
                for word in (part.text or "").split():
                    content = types.Content(role="model", parts=[says(f"{word} ")])
                    yield LlmResponse(content=content, partial=True)
        content = types.Content(role="model", parts=parts)
        yield LlmResponse(
            content=content, usage_metadata=used, model_version=f"{self.model} {turn}"
        )

    def _keep(self, request: LlmRequest) -> None:
        body = {
            "contents": [json.loads(one.model_dump_json()) for one in request.contents],
            "instruction": request.config.system_instruction,
            "tools": sorted(request.tools_dict),
        }
        if self.seen is not None:
            self.seen.append(body)
        if self.place is not None:
            keep_request(self.place, [self.model, body])


# -- the tools


def search(query: str, tool_context: ToolContext) -> list[str]:
    """Search the catalogue, and remember it in the session."""
    fails_at_first()
    tool_context.state["searched"] = query
    return [query, "cup"]


def guess(n: int) -> str:
    """Ask for another try, for a plugin of the framework to make."""
    if n == 1:
        raise ValueError("higher")
    return outside.did(f"guess {n}", "right")


def refund(cents: int) -> dict[str, Any]:
    """Refund; the framework asks for a confirmation."""
    return outside.did(f"refund {cents}", {"refunded": cents})


async def count(item: str, tool_context: ToolContext) -> int:
    """Count what is in store; what it found is in the state."""
    found = outside.did(f"count {item}", 3)
    return found


POLICIES: dict[str, Any] = {
    "search": AGAIN,
    "tip": {"needs_approval": True},
    "expert": {"after_crash": "retry"},
    "transfer_to_agent": {"after_crash": "retry"},
}
SHOP: list[Turn] = [
    lambda: [
        says("Let me see."),
        calls("search", query="tea"),
        calls("pay", cents=5, to="ann"),
        calls("pay", cents=5, to="ann"),
        calls("guess", n=1),
    ],
    lambda: [calls("guess", n=2), calls("refund", cents=3)],
    lambda: [calls("tip", cents=1), calls("expert", request="why?")],
    lambda: [calls("transfer_to_agent", agent_name="clerk")],
]
EXPERT: list[Turn] = [lambda: [calls("look")], lambda: [says("because")]]
CLERK: dict[int, Turn] = {0: lambda: [calls("count", item="tea")], 1: lambda: [says("all is well")]}


def shop(place: Path, wrapped: Callable[[BaseLlm], BaseLlm]) -> App:
    def llm(name: str, turns: Any) -> BaseLlm:
        return wrapped(FakeLlm(model=name, turns=turns, place=place))

    expert = Agent(name="expert", description="Knows.", model=llm("expert", EXPERT), tools=[look])
    # The answers of others are context for an agent, with the role of the user.
    clerk = Agent(name="clerk", description="Counts.", model=llm("clerk", CLERK), tools=[count])
    root = Agent(
        name="shop",
        model=llm("shop", SHOP),
        instruction="Sell tea, not {searched?}.",
        tools=[
            search,
            pay,
            tip,
            guess,
            FunctionTool(refund, require_confirmation=True),
            AgentTool(expert),
        ],
        sub_agents=[clerk],
    )
    retries = ReflectAndRetryToolPlugin(max_retries=2)
    return App(name="shop", root_agent=root, plugins=[retries, EventLogPlugin(tools=POLICIES)])


# -- their lives


def live(wrapped: Callable[[BaseLlm], BaseLlm], streams: bool) -> Callable[[Path], Any]:
    """A life of a process that runs the agent; what must be as in the run that nobody killed."""
    mode = StreamingMode.SSE if streams else StreamingMode.NONE

    def lives(place: Path) -> Any:
        async def sell(run: Run) -> Any:
            runner = InMemoryRunner(app=shop(place, wrapped))
            named = {"user_id": "user", "session_id": run.uuid()}
            sessions = runner.session_service
            await sessions.create_session(app_name="shop", **named)
            message: Any = types.UserContent(run.task)
            while message is not None:
                config = RunConfig(streaming_mode=mode)
                events = [
                    event
                    async for event in runner.run_async(
                        **named, new_message=message, run_config=config
                    )
                ]
                message = await approvals(events)
            session = await sessions.get_session(app_name="shop", **named)
            assert session is not None
            return told([list(map(plain, session.events)), session.state, run.usage().input_tokens])

        result = ended(place, sell)["result"]
        intents = events_of(CheckpointStore(place / RUNS), CallIntended)
        asked = [one.args[0][0] for one in intents if one.tool == "model"]
        return {"result": result, "bodies": requests(place), "recorded": told(asked)}

    return lives


def plain(event: Any) -> Any:
    """An event without what is of the process that made it."""
    told: dict[str, Any] = json.loads(event.model_dump_json(exclude_none=True))
    return {key: one for key, one in told.items() if key not in OF_PROCESS}


def told(value: Any) -> Any:
    """With the ids that ADK draws numbered in the order in which they are seen."""
    numbers: dict[str, str] = {}
    text = CONFIRMATION.sub(
        lambda of: numbers.setdefault(of[0], f"id {len(numbers)}"), json.dumps(value)
    )
    return json.loads(text)


def plainly(place: Path) -> Any:
    """The plugin alone."""
    return live(lambda llm: llm, False)(place)


def streamed(place: Path) -> Any:
    """Models that stream."""
    return live(RecordedLlm.of, True)(place)


async def _warm() -> None:
    """What each process would do once, so that forked ones need not."""
    for llm in (FakeLlm(model="warm", turns=[lambda: [says("warm")]]),):
        agent = Agent(name="warm", model=llm, tools=[search])
        await InMemoryRunner(agent=agent).run_debug("warm", quiet=True)


asyncio.run(_warm())
