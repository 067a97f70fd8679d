"""Two agents as they were when their runs began, and small edits of them, by kind."""

from __future__ import annotations

from dataclasses import dataclass

SUPPORT = '''
import asyncio

from recovery import tool
from shop import answer, mails, orders, pages, refunds, tickets

MODEL = "small-1"
TEMPERATURE = 0.2
SYSTEM = "You are a helpfull support agent. Be brief."
LIMIT = 4


@tool(after_crash="retry")
async def ask_model(messages, model=MODEL, temperature=TEMPERATURE):
    return answer(messages)


@tool(after_crash="retry")
def read_order(number):
    return orders(number)


@tool(after_crash="retry")
async def search(query, limit=3):
    return pages(query)


async def summarise(text, style="short"):
    return f"summary of {text}"


summarise = tool(after_crash="retry")(summarise)


@tool
async def refund(order, cents, reason="unhappy"):
    return refunds(order)


@tool
def send_mail(to, text):
    return mails(to)


@tool
def note_down(ticket, text):
    return tickets(ticket)


def describe(order):
    return f"Order {order['number']} cost {order['cents']} cents."


async def agent(run):
    customer = run.task["customer"]
    found = await run.call(search, f"policy for {run.task['subject']}")
    run.messages.append({"role": "system", "content": SYSTEM})
    run.messages.append({"role": "user", "content": f"{customer} writes about {run.task['subject']}."})
    run.messages.append({"role": "user", "content": f"Known: {found}"})
    async for step in run.steps():
        order = await run.call(read_order, step)
        run.messages.append({"role": "user", "content": describe(order)})
        reply = await run.call(ask_model, run.messages)
        run.messages.append(reply)
        similar, terms = await asyncio.gather(
            run.call(search, f"like order {step}"), run.call(summarise, f"terms of {step}")
        )
        run.state["terms"] = terms
        if "refund" in reply["content"]:
            paid = await run.call(refund, f"order-{step}", order["cents"])
            run.messages.append({"role": "tool", "content": paid})
            await run.call(send_mail, f"{customer}/{step}", f"We have refunded {order['cents']} cents.")
        await run.call(note_down, f"ticket-{step}", f"{reply['content']} ({similar})")
        if step >= LIMIT:
            break
    return await run.call(ask_model, run.messages)
'''

GRAPH = '''
from recovery.graph import Graph
from shop import mails, orders, pages, refunds, tickets
from recovery import tool

send = tool(mails)
pay = tool(refunds)
file = tool(tickets)

graph = Graph("claims")


async def read(context):
    return {"order": orders(1)}


async def look_up(context):
    return {"policy": pages("claims")}


async def decide(context):
    return {"verdict": "pay"}


async def settle(context):
    return {"paid": pay("order-1")}


async def tell(context):
    return {"told": send("ann/1")}


async def close(context):
    return {"closed": file("ticket-1")}


graph.node("read", read)
graph.node("look_up", look_up)
graph.node("decide", decide)
graph.node("settle", settle)
graph.node("tell", tell)
graph.node("close", close)
graph.edge("read", "look_up")
graph.edge("look_up", "decide")
graph.edge("decide", "settle")
graph.edge("settle", "tell")
graph.edge("tell", "close")
'''


@dataclass(frozen=True, slots=True)
class Edit:
    """``old`` in the source becomes ``new``; an empty ``old`` adds to the end."""

    kind: str
    what: str
    changes: tuple[tuple[str, str], ...]
    source: str = SUPPORT

    def applied(self) -> str:
        text = self.source
        for old, new in self.changes:
            assert text.count(old) == 1 or not old, (self.what, text.count(old))
            text = text.replace(old, new) if old else text + new
        return text


def _edit(kind: str, what: str, *changes: tuple[str, str]) -> Edit:
    return Edit(kind, what, changes)


WORDS, ARGUMENTS, READS, EFFECTS = "wording", "arguments of reads", "calls of reads", "side effects"
SHAPE, TOOLS, LOOP, PLAIN, GRAPHS = "order and tasks", "tools", "steps", "no call touched", "graphs"

EDITS = (
    # -- what models are told
    _edit(WORDS, "typo in the system prompt", ("helpfull", "helpful")),
    _edit(WORDS, "system prompt rewritten",
          ("You are a helpfull support agent. Be brief.", "Act for the shop. Never lie.")),
    _edit(WORDS, "a sentence more in the system prompt", ("Be brief.", "Be brief. Be kind.")),
    _edit(WORDS, "a user message reworded", (" writes about ", " has a question about ")),
    _edit(WORDS, "format of a result in a message", ('f"Known: {found}"', 'f"What we know: {found}"')),
    _edit(WORDS, "format of an order in a message", (" cost {order['cents']} cents.", ": {order['cents']}")),
    _edit(WORDS, "role of a message", ('{"role": "tool", "content": paid}', '{"role": "user", "content": paid}')),
    _edit(WORDS, "a field more in a message", ('"content": SYSTEM}', '"content": SYSTEM, "name": "shop"}')),
    _edit(WORDS, "a message inserted",
          ('    run.messages.append({"role": "user", "content": f"Known',
           '    run.messages.append({"role": "user", "content": "Be fair."})\n'
           '    run.messages.append({"role": "user", "content": f"Known')),
    _edit(WORDS, "a message inserted in each step",
          ("        reply = ", '        run.messages.append({"role": "user", "content": "What now?"})\n        reply = ')),
    _edit(WORDS, "a message removed",
          ('    run.messages.append({"role": "user", "content": f"Known: {found}"})\n', "")),
    _edit(WORDS, "two messages put in one",
          ('writes about {run.task[\'subject\']}."})\n    run.messages.append({"role": "user", "content": f"Known',
           "writes about {run.task['subject']}. Known")),
    # -- arguments of calls that are safe to repeat
    _edit(ARGUMENTS, "typo in a query", ("policy for ", "policies for ")),
    _edit(ARGUMENTS, "query of one in a gather", ("like order {step}", "similar to {step}")),
    _edit(ARGUMENTS, "both queries of a gather",
          ("like order {step}", "similar to {step}"), ("terms of {step}", "conditions of {step}")),
    _edit(ARGUMENTS, "another temperature by default", ("TEMPERATURE = 0.2", "TEMPERATURE = 0.7")),
    _edit(ARGUMENTS, "another temperature given",
          ("reply = await run.call(ask_model, run.messages)",
           "reply = await run.call(ask_model, run.messages, temperature=0.7)")),
    _edit(ARGUMENTS, "another model by default", ('"small-1"', '"large-2"')),
    _edit(ARGUMENTS, "another model given",
          ("reply = await run.call(ask_model, run.messages)",
           'reply = await run.call(ask_model, run.messages, model="large-2")')),
    _edit(ARGUMENTS, "type of an argument", ("run.call(read_order, step)", "run.call(read_order, str(step))")),
    _edit(ARGUMENTS, "argument by name", ("run.call(read_order, step)", "run.call(read_order, number=step)")),
    _edit(ARGUMENTS, "default given", ('run.call(search, f"like order {step}")', 'run.call(search, f"like order {step}", limit=3)')),
    _edit(ARGUMENTS, "optional argument given", ('run.call(search, f"like order {step}")', 'run.call(search, f"like order {step}", limit=5)')),
    _edit(ARGUMENTS, "messages given as a copy",
          ("reply = await run.call(ask_model, run.messages)", "reply = await run.call(ask_model, list(run.messages))")),
    _edit(ARGUMENTS, "messages given with one more",
          ("reply = await run.call(ask_model, run.messages)",
           'reply = await run.call(ask_model, [*run.messages, {"role": "user", "content": "Go on."}])')),
    # -- calls that are safe to repeat, more or fewer of them
    _edit(READS, "a read inserted at the start",
          ("    found = ", '    await run.call(search, "news")\n    found = ')),
    _edit(READS, "a read inserted in each step",
          ("        reply = ", '        await run.call(summarise, f"order {step}")\n        reply = ')),
    _edit(READS, "a read of a new tool inserted",
          ("        reply = ", "        await run.call(stock, step)\n        reply = "),
          ("def describe(", '@tool(after_crash="retry")\ndef stock(number):\n    return 7\n\n\ndef describe(')),
    _edit(READS, "a read removed before the loop",
          ("    found = await run.call(search, f\"policy for {run.task['subject']}\")\n", "    found = 'rules'\n")),
    _edit(READS, "a read removed from each step",
          ("        order = await run.call(read_order, step)\n",
           '        order = {"number": step, "cents": 100 * step}\n')),
    _edit(READS, "a read removed from a gather",
          ("        similar, terms = await asyncio.gather(\n            run.call(search, f\"like order {step}\"), run.call(summarise, f\"terms of {step}\")\n        )\n",
           "        terms = await run.call(summarise, f\"terms of {step}\")\n        similar = 'none'\n")),
    _edit(READS, "a read added to a gather", ("f\"terms of {step}\")\n        )", "f\"terms of {step}\"), run.call(search, 'more')\n        )"),
          ("similar, terms = ", "similar, terms, _ = ")),
    _edit(READS, "a read moved behind the model's turn",
          ("        reply = await run.call(ask_model, run.messages)\n", ""),
          ("        run.state[\"terms\"] = terms\n", "        run.state[\"terms\"] = terms\n        reply = await run.call(ask_model, run.messages)\n"),
          ("        run.messages.append(reply)\n", ""),
          ('        if "refund"', '        run.messages.append(reply)\n        if "refund"')),
    _edit(READS, "a read made twice", ("        reply = ", "        await run.call(read_order, step)\n        reply = ")),
    _edit(READS, "the last question removed", ("    return await run.call(ask_model, run.messages)\n", "    return 'done'\n")),
    # -- order
    _edit(SHAPE, "gather in another order",
          ("similar, terms = ", "terms, similar = "),
          ('run.call(search, f"like order {step}"), run.call(summarise, f"terms of {step}")',
           'run.call(summarise, f"terms of {step}"), run.call(search, f"like order {step}")')),
    _edit(SHAPE, "gather made one after the other",
          ("        similar, terms = await asyncio.gather(\n            run.call(search, f\"like order {step}\"), run.call(summarise, f\"terms of {step}\")\n        )\n",
           "        similar = await run.call(search, f\"like order {step}\")\n        terms = await run.call(summarise, f\"terms of {step}\")\n")),
    _edit(SHAPE, "gather made a task group",
          ("        similar, terms = await asyncio.gather(\n            run.call(search, f\"like order {step}\"), run.call(summarise, f\"terms of {step}\")\n        )\n",
           "        async with asyncio.TaskGroup() as group:\n            one = group.create_task(run.call(search, f\"like order {step}\"))\n"
           "            two = group.create_task(run.call(summarise, f\"terms of {step}\"))\n        similar, terms = one.result(), two.result()\n")),
    _edit(SHAPE, "independent calls swapped",
          ('            await run.call(send_mail, f"{customer}/{step}", f"We have refunded {order[\'cents\']} cents.")\n'
           '        await run.call(note_down, f"ticket-{step}", f"{reply[\'content\']} ({similar})")\n',
           '        await run.call(note_down, f"ticket-{step}", f"{reply[\'content\']} ({similar})")\n        if "refund" in reply["content"]:\n'
           '            await run.call(send_mail, f"{customer}/{step}", f"We have refunded {order[\'cents\']} cents.")\n')),
    _edit(SHAPE, "called by its name", ("await run.call(refund, ", "await refund(")),
    _edit(SHAPE, "helper function taken out",
          ("        order = await run.call(read_order, step)\n", "        order = await order_of(run, step)\n"),
          ("async def agent", "async def order_of(run, step):\n    return await run.call(read_order, step)\n\n\nasync def agent")),
    # -- side effects
    _edit(EFFECTS, "wording of a mail", ("We have refunded", "We refunded")),
    _edit(EFFECTS, "amount of a refund", ("f\"order-{step}\", order[\"cents\"])", "f\"order-{step}\", order[\"cents\"] + 1)")),
    _edit(EFFECTS, "a side effect at the end of each step",
          ("        if step >= LIMIT", '        await run.call(note_down, f"audit-{step}", "done")\n        if step >= LIMIT')),
    _edit(EFFECTS, "a side effect behind the loop",
          ("    return await run.call(ask_model", '    await run.call(note_down, "audit", "done")\n    return await run.call(ask_model')),
    _edit(EFFECTS, "a side effect removed", ('        await run.call(note_down, f"ticket-{step}", f"{reply[\'content\']} ({similar})")\n', "")),
    # -- tools
    _edit(TOOLS, "a tool with a new parameter", ("def read_order(number):", "def read_order(number, fresh=False):")),
    _edit(TOOLS, "a side effect with a new parameter", ("def send_mail(to, text):", 'def send_mail(to, text, subject="Your order"):')),
    _edit(TOOLS, "a reading tool renamed", ("def read_order(", "def load_order("), ("run.call(read_order", "run.call(load_order")),
    _edit(TOOLS, "a side effect renamed", ("def send_mail(", "def post_mail("), ("run.call(send_mail", "run.call(post_mail")),
    _edit(TOOLS, "a side effect renamed under its old name",
          ("@tool\ndef send_mail(", '@tool(name="send_mail")\ndef post_mail('), ("run.call(send_mail", "run.call(post_mail")),
    _edit(TOOLS, "body of a tool changed", ("    return mails(to)", "    sent = mails(to)\n    return sent")),
    _edit(TOOLS, "a plain tool made async", ("@tool\ndef note_down", "@tool\nasync def note_down")),
    _edit(TOOLS, "default of a side effect changed", ('reason="unhappy"', 'reason="asked for"')),
    _edit(TOOLS, "policy of a tool changed", ("@tool\ndef note_down", '@tool(after_crash="retry")\ndef note_down')),
    _edit(TOOLS, "a time-out added", ('@tool(after_crash="retry")\nasync def search', '@tool(after_crash="retry", timeout_s=30)\nasync def search')),
    _edit(TOOLS, "a retry added", ("@tool\nasync def refund", "@tool(retry=Retry(3))\nasync def refund"), ("import tool\n", "import Retry, tool\n")),
    # -- steps
    _edit(LOOP, "more steps", ("LIMIT = 4", "LIMIT = 6")),
    _edit(LOOP, "fewer steps", ("LIMIT = 4", "LIMIT = 3")),
    _edit(LOOP, "loop left by another condition", ("if step >= LIMIT", "if not step < LIMIT")),
    _edit(LOOP, "a step of another kind at the end",
          ("    return await run.call(ask_model", '    await run.call(search, "what customers think")\n    return await run.call(ask_model')),
    # -- what has to do with no call
    _edit(PLAIN, "a log line", ("        order = await", '        print(end="")\n        order = await')),
    _edit(PLAIN, "a comment", ("        order = await", "        # look at it\n        order = await")),
    _edit(PLAIN, "a local renamed", ("        reply = await run.call(ask_model, run.messages)\n        run.messages.append(reply)\n",
          "        told = await run.call(ask_model, run.messages)\n        reply = told\n        run.messages.append(told)\n")),
    _edit(PLAIN, "something more in the state", ('run.state["terms"] = terms', 'run.state["terms"], run.state["step"] = terms, step')),
    _edit(PLAIN, "the time asked for", ("        order = await", "        run.now()\n        order = await")),
    _edit(PLAIN, "another result", ("    return await run.call(ask_model, run.messages)", '    return [await run.call(ask_model, run.messages)]')),
    # -- graphs
    *(Edit(GRAPHS, what, changes, GRAPH) for what, *changes in (
        ("a node inserted", ('graph.edge("look_up", "decide")', 'graph.node("weigh", decide)\ngraph.edge("look_up", "weigh")\ngraph.edge("weigh", "decide")')),
        ("a node added at the end", ("", 'graph.node("rate", decide)\ngraph.edge("close", "rate")\n')),
        ("a node renamed", ('graph.node("decide", decide)', 'graph.node("judge", decide)'), ('graph.edge("look_up", "decide")', 'graph.edge("look_up", "judge")'),
         ('graph.edge("decide", "settle")', 'graph.edge("judge", "settle")')),
        ("a node removed", ('graph.node("look_up", look_up)\n', ""), ('graph.edge("read", "look_up")\ngraph.edge("look_up", "decide")', 'graph.edge("read", "decide")')),
        ("a node that pays renamed", ('graph.node("settle", settle)', 'graph.node("payout", settle)'), ('graph.edge("decide", "settle")', 'graph.edge("decide", "payout")'),
         ('graph.edge("settle", "tell")', 'graph.edge("payout", "tell")')),
        ("an edge led past a node", ('graph.edge("decide", "settle")', 'graph.edge("decide", "tell")')),
    )),
)  # fmt: skip
