"""The agents. Those under PLAIN are run as plain code as well: without its async and await.

The name says the idiom. Each ends, whatever became of its processes, as the run that was never
killed: same result, each effect once.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from typing import Any

from recovery import Call, Resolution, Retry, Run, ToolError, tool
from tests.support.outside import counted, did, truth

ALL: dict[str, Callable[[Run], Any]] = {}
PLAIN: list[str] = []
OPTIONS: dict[str, dict[str, Any]] = {}
SIGNALS: dict[str, list[tuple[str, Any]]] = {}  # what others send to a run that waits


def program(plain: bool = False, **options: Any) -> Callable[[Any], Any]:
    def add(agent: Any) -> Any:
        ALL[agent.__name__], OPTIONS[agent.__name__] = agent, options
        PLAIN.extend([agent.__name__] if plain else [])
        return agent

    return add


@tool
async def charge(cents: int) -> str:
    return did(f"charge {cents}", f"receipt {cents}")


charging: list[int] = []  # by slow, in this process


@tool
async def slow(cents: int) -> str:
    did(f"charge {cents}", "receipt")
    charging.append(cents)
    await asyncio.sleep(1.5)
    return "receipt"


@tool(after_crash="retry")
async def ask(messages: Any) -> str:
    return f"answer {len(messages)}"


# -- a side effect in doubt, inside other calls


@tool(timeout_s=0.75, after_crash="retry")
async def order(cents: int) -> str:
    return await slow(cents)


@tool(after_crash="retry")
async def order_for_two() -> list[str]:
    return list(await asyncio.gather(charge(1), charge(2)))


@tool(after_crash="retry")
async def order_beside_a_failure() -> str:
    async def fails() -> None:
        while not (charging or paid.done()):
            await asyncio.wait([paid], timeout=0.01)
        raise ValueError("the sibling")

    charging.clear()
    async with asyncio.TaskGroup() as group:
        paid = group.create_task(slow(5))
        group.create_task(fails())
    return paid.result()


async def _twice(run: Run, how: Any, *args: Any) -> str:
    for number in range(2):
        try:
            return str(await run.call(how, *args, call_id=f"c{number}"))
        except (TimeoutError, ToolError, ValueError, ExceptionGroup):
            pass
    return "gave up"


@program()
async def times_out_around_a_payment(run: Run) -> str:
    return await _twice(run, order, 100)


@program()
async def fails_beside_a_payment(run: Run) -> str:
    return await _twice(run, order_beside_a_failure)


@program()
async def gathers_inside_a_tool(run: Run) -> Any:
    async for step in run.steps():
        found = await order_for_two()
        if step == 2:
            return found


@tool(after_crash="retry")
async def whole_order(cents: int) -> list[str]:
    return [await shipped(cents), await charge(cents + 1)]


@tool(after_crash="retry")
async def shipped(cents: int) -> str:
    return await charge(cents) + " and shipped"


@program(plain=True)
async def calls_tools_three_deep(run: Run) -> Any:
    async for step in run.steps():
        found = await whole_order(step * 10)
        if step == 3:
            return found


@tool(retry=Retry(9, 0.0, jitter=0.0), after_crash="retry")
async def pays_and_stumbles(cents: int) -> str:
    receipt = await charge(cents)
    if counted()["stumbled"] < 2:
        await stumbles()
    return receipt


@tool
async def stumbles() -> None:
    did("stumbled", None, fails=True)
    raise OSError("for a moment")


@program(plain=True)
async def is_retried_behind_a_payment(run: Run) -> str:
    return await pays_and_stumbles(7)


# -- state, messages and locals


@program(plain=True)
async def asks_in_a_conversation(run: Run) -> Any:
    if not run.messages:
        run.messages.append({"role": "system", "content": "You count."})
    history = list(run.messages)
    run.state.setdefault("answers", [])
    async for step in run.steps():
        run.messages.append({"role": "user", "content": f"{step}"})
        answer = await ask(run.messages)
        run.messages.append({"role": "assistant", "content": answer})
        run.state["answers"].append(await charge(len(run.messages)))
        if step == 5:
            return [history[0]["content"], run.state["answers"]]


@program(plain=True, checkpoint_every_n=None)
async def keeps_its_messages_in_a_local(run: Run) -> Any:
    messages = []
    async for step in run.steps():
        messages.append(await charge(step))
        if step == 5:
            return messages


# -- what a call is known by


class Mail:
    def __init__(self, account: str) -> None:
        self.account = account

    @tool(identity=["self.account", "to"])
    async def send(self, to: str, text: str = "hello") -> str:
        return did(f"{self.account} to {to}", f"{self.account}: {text}")


@tool(name="page")
async def fetch(url: str, patience_s: float = 5.0) -> str:
    return did(f"get {url}", f"page {url}")


@program()
async def gathers_methods_and_partials(run: Run) -> Any:
    mails = [Mail(name) for name in ("work", "home")]
    sent = await asyncio.gather(*(mail.send("ann") for mail in mails))
    pages = await asyncio.gather(*(run.call(partial(fetch, url)) for url in "abc"))
    again = [await run.call(fetch, "a", patience_s=5.0, call_id="again")]
    return [sent, pages, again]


def made_for(account: str) -> Callable[[str], Any]:
    @tool(name=f"ask {account}")
    async def ask_it(question: str) -> str:
        return did(f"{account}: {question}", account + question)

    return ask_it


@program(plain=True)
async def makes_its_tools_in_a_factory(run: Run) -> Any:
    found = []
    async for step in run.steps():
        for one in (made_for("x"), made_for("y")):
            found.append(await one(f"{step}"))
        run.state["found"] = [*run.state.get("found", []), *found[-2:]]
        if step == 3:
            return run.state["found"]


# -- results and errors


class Size(enum.Enum):
    SMALL = "s"


@dataclass
class Parcel:
    to: str
    size: Size
    price: Decimal


@tool(reconcile=lambda call: parcel_of(call))  # noqa: PLW0108 - defined below
async def parcel(to: str) -> Parcel:
    did(f"parcel {to}", None)
    return Parcel(to, Size.SMALL, Decimal("9.99"))


def parcel_of(call: Call) -> Resolution:
    found = truth(call)
    known = Parcel(call.args[0], Size.SMALL, Decimal("9.99"))
    return Resolution.outcome(known) if found.how == "outcome" else found


@program(plain=True)
async def gets_values_of_its_own_types(run: Run) -> Any:
    run.state["sent"] = []
    async for step in run.steps():
        run.state["sent"].append(await parcel(f"ann {step}"))
        if step == 4:
            return run.state["sent"]


@tool
async def stumbles_once(step: int) -> str:
    if step == 3 and not counted()["stumbled at 3"]:
        did("stumbled at 3", None, fails=True)
        raise ConnectionError("for once")
    return did(f"work {step}", f"work {step}")


@program(plain=True, checkpoint_every_n=2)
async def has_a_tool_that_fails_once(run: Run) -> Any:
    async for step in run.steps():
        found = await stumbles_once(step)
        if step == 5:
            return found


class NothingRecordsThis:
    pass


@tool
async def gives_what_cannot_be_recorded() -> Any:
    did("gave", "told by a person")
    return NothingRecordsThis()


@program(plain=True)
async def gets_what_cannot_be_recorded(run: Run) -> Any:
    await charge(1)
    found = await gives_what_cannot_be_recorded()
    await charge(2)
    return found


# -- concurrency


@program()
async def takes_what_comes_first(run: Run) -> Any:
    @tool(name="mirror")
    async def mirror(name: str, takes: float) -> str:
        await asyncio.sleep(takes)
        return did(f"asked {name}", name)

    tasks = [
        asyncio.create_task(run.call(mirror, name, takes))
        for name, takes in (("slow", 0.03), ("fast", 0.01))
    ]
    found: list[str] = []
    left: Any = tasks
    while left:
        done, left = await run.wait(left, return_when=asyncio.FIRST_COMPLETED)
        found += [task.result() for task in done]
    return sorted(found)


@program()
async def works_off_a_queue(run: Run) -> Any:
    queue: asyncio.Queue[int] = asyncio.Queue()
    for number in range(4):
        queue.put_nowait(number)

    async def worker() -> None:
        while not queue.empty():
            await charge(queue.get_nowait())

    async with asyncio.TaskGroup() as group:
        for _ in range(2):
            group.create_task(worker())
    return "done"


# -- the outside of a run


@program(park_after_s=0)
async def waits_for_either(run: Run) -> Any:
    waits = [asyncio.create_task(run.wait_for(name)) for name in ("paid", "cancelled")]
    done, left = await run.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for task in left:
        task.cancel()
    first = done[0].result()
    await charge(first)
    return [first, await run.wait_for(("paid", "cancelled"))]


SIGNALS["waits_for_either"] = [("paid", 129), ("cancelled", 7)]


@tool(after_crash="retry")
async def words(of: str) -> Any:
    for word in of.split():
        yield word


@program()
async def collects_a_stream(run: Run) -> Any:
    async for step in run.steps():
        async with run.stream(words, f"so be it {step}") as stream:
            async for _ in stream:
                pass
        await charge(step)
        run.state["text"] = stream.result
        if step == 3:
            return run.state["text"]


async def _sub(run: Run) -> Any:
    async for step in run.steps():
        await charge(run.task * 10 + step)
        if step == 2:
            return run.task


@program()
async def has_children(run: Run) -> Any:
    found = await asyncio.gather(
        *(run.child(_sub, number, name=f"child {number}") for number in (1, 2))
    )
    await charge(99)
    return found


async def _undo(call: Any, result: Any) -> None:
    did(f"unbook {call.args[0]}", None)


@tool(undo=_undo)
async def reserve(room: str) -> str:
    return did(f"reserve {room}", room)


@program(plain=True)
async def undoes_what_it_booked(run: Run) -> Any:
    for room in ("a", "b"):
        await reserve(room)
    await charge(3)
    await run.undo()
    return "undone"
