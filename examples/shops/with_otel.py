"""The shop of ``make demo WITH=otel``: what was killed again and again is one trace."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import bank
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

from recovery import RecoverableAgent, Run, tool
from recovery.integrations.otel import instrument

SPANS = Path("spans")  # of all processes


@tool(**bank.POLICIES["price"])
async def price(item: str) -> int:
    """The price of an item in cents."""
    return bank.PRICES[item]


@tool(**bank.POLICIES["pay"])
async def pay(cents: int, to: str) -> str:
    """Pay."""
    return bank.pay(cents, to)


async def sell(run: Run) -> str:
    """Make the calls that a model would ask for."""
    tools: dict[str, Any] = {"price": price, "pay": pay}
    for turn in bank.TURNS:
        await asyncio.gather(*[run.call(tools[name], **given) for name, given in turn])
    return bank.ANSWER


def _line(span: ReadableSpan) -> str:
    return f"{span.context.trace_id:x} {span.context.span_id:x} {span.name}\n"


def shop(task: str) -> str:
    """Begin the run, or resume it. Raises if its spans are not those of one run."""
    provider = TracerProvider()
    with SPANS.open("a") as out:
        exporter = ConsoleSpanExporter(out=out, formatter=_line)
        provider.add_span_processor(SimpleSpanProcessor(exporter))
        spans = instrument(provider)
        agent = RecoverableAgent(sell, bank.STORE)
        result = agent.run_with_recovery_sync(task, "order-42")["result"]
        spans.stop()
    traces, ids, names = zip(
        *(line.split(" ", 2) for line in SPANS.read_text().splitlines()), strict=True
    )
    if len({*traces}) > 1 or len({*ids}) < len(ids):
        raise RuntimeError(
            f"{len({*traces})} traces, and {len({*ids})} of {len(ids)} spans: {names}"
        )
    return str(result)
