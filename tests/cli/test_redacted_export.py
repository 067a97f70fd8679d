"""``recovery export --redact``: what may leave production is replayed, and never imported."""

from __future__ import annotations

import asyncio
import io
import json
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from eventlog.transfer import BadExportError, import_
from recovery import CheckpointStore, RecoverableAgent, register, tool
from recovery.errors import DivergenceError
from recovery.testing import replay
from tests.cli.harness import call

SECRET = "bob@example.org"
DONE: list[Any] = []


@register
@dataclass
class Customer:
    """A value of a type."""

    email: str
    visits: int


@tool(after_crash="retry")
async def look_up(number: int) -> dict[str, Any]:
    DONE.append(number)
    return {"email": f"{number} {SECRET} {'long ' * 30}", "age": 40 + number, "city": "Ulm"}


@tool(after_crash="retry")
async def customer(number: int) -> Customer:
    DONE.append(number)
    return Customer(SECRET, 3)


@tool
def send(*, email: str, text: str) -> str:
    DONE.append(email)
    return f"sent to {email}"


@tool
def remind(email: str, about: Any, who: Customer) -> None:
    DONE.append(email)


@tool
def refuse(what: str) -> None:
    DONE.append(what)
    raise ValueError(f"no {what}")


@tool
def letter(number: int) -> str:
    DONE.append(number)
    return f"{number}: dear {SECRET}, " + "and so on " * 30


@tool
def oops() -> None:
    raise LookupError(SECRET, {"email": SECRET})


async def agent(run: Any) -> Any:
    """Values under names, in types, in messages, in results of tools, in errors."""
    async for step in run.steps():
        found = await asyncio.gather(*(run.call(look_up, n) for n in range(3)))
        run.messages.append({"role": "tool", "content": found[0]})
        typed = await run.call(customer, step)
        for one in found:
            await run.call(send, email=one["email"], text="hello")
            await run.call(remind, email=SECRET, about=(one["email"], {"city": "Ulm"}), who=typed)
        run.state["email"] = typed.email
        run.messages.append({"role": "tool", "content": await run.call(letter, step)})
        with suppress(ValueError):
            await run.call(refuse, SECRET)
        with suppress(LookupError):
            await run.call(oops)
        if step == 3:
            return {"email": typed.email, "visits": typed.visits, "city": found[0]["city"]}


@pytest.fixture
def exported(tmp_path: Path) -> Path:
    store = CheckpointStore(tmp_path / "runs")
    task = {"email": SECRET, "id": 7}
    RecoverableAgent(agent, store, 1).run_with_recovery_sync(task, "r")
    DONE.clear()
    words = ["--redact", "email", "--redact", "send", "--redact", "refuse", "--redact", "letter"]
    done = call("recovery", "export", "r", "--store", str(tmp_path / "runs"), *words, cwd=tmp_path)
    assert done.code == 0, done.err
    file = tmp_path / "r.jsonl"
    file.write_text(done.out)
    return file


def test_what_is_hidden_is_not_in_the_file(exported: Path) -> None:
    text = exported.read_text()
    assert SECRET not in text
    assert "bob" not in text
    assert "Ulm" in text
    assert json.loads(text.splitlines()[0])["redacted"] is True


def test_it_is_replayed(exported: Path) -> None:
    ended = replay(exported, agent)
    assert ended.result == {"email": "[redacted]", "visits": 3, "city": "Ulm"}
    assert ended.record_end == ""
    assert ended.served == 3 * 13
    # Of tools whose arguments are not hidden as a whole.
    assert not re.findall(r"look_up|customer,", "".join(ended.differences))
    assert DONE == []


def test_a_value_that_is_made_of_a_hidden_one_matches(exported: Path) -> None:
    ended = replay(exported, agent, swap={"look_up": lambda n: {"email": n, "city": "Rom"}})
    assert any("look_up" in line for line in ended.differences)
    assert DONE == []


def test_other_calls_are_a_difference_all_the_same(exported: Path) -> None:
    async def other(run: Any) -> Any:
        async for step in run.steps():
            await run.call(look_up, step)
            await run.call(tool(name="new")(lambda n: n), 1)

    with pytest.raises(DivergenceError, match="new"):
        replay(exported, other)


def test_it_is_never_imported(exported: Path, tmp_path: Path) -> None:
    with pytest.raises(BadExportError, match="redacted"):
        import_(io.BytesIO(exported.read_bytes()), tmp_path / "new")
    assert not (tmp_path / "new").exists()
    bare = exported.read_text().replace(',"redacted":true', "", 1)
    with pytest.raises(BadExportError, match="changed"):
        import_(io.BytesIO(bare.encode()), tmp_path / "new")


def test_everything_may_be_hidden(exported: Path, tmp_path: Path) -> None:
    done = call("recovery", "export", "r", "--store", "runs", "--redact", "*", cwd=tmp_path)
    assert "Ulm" not in done.out
    assert "look_up" in done.out


def test_without_redact_it_says_what_to_use(tmp_path: Path) -> None:
    done = call("recovery", "export", "r", "--store", "runs", cwd=tmp_path)
    assert done.code == 64
    assert "logdump export" in done.err
