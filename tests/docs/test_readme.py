"""The README's example is run as it stands, but for the bodies that it leaves to the reader."""

from __future__ import annotations

import re
from importlib.util import find_spec

import pytest

import recovery
from recovery.declare.tool import ToolOptions
from recovery.errors import RunFailedError
from tests.support.paths import ROOT


def example() -> str:
    text = (ROOT / "README.md").read_text()
    code, _ = re.findall(r"```python\n(.*?)```", text, re.S)  # the other one is a test of users
    return str(code)


def run_example(model: object, sent: list[str], task: str) -> None:
    code = example()
    for stub, body in (
        ("ask_model(messages: list) -> dict: ...", "ask_model(messages): return MODEL(messages)"),
        ("send_email(to: str, body: str) -> str: ...", "send_email(to, body): return SEND(to)"),
        ('"write to Ann"', "TASK"),
    ):
        assert stub in code
        code = code.replace(stub, body)

    def send(to: str) -> str:
        sent.append(to)
        return "sent"

    names = {"MODEL": model, "SEND": send, "TASK": task, "__name__": "readme"}
    exec(compile(code, "README.md", "exec"), names)  # noqa: S102 - our own README


def answer(messages: list[dict[str, object]]) -> dict[str, object]:
    if len(messages) == 1:
        call = {"id": "c1", "name": "send_email", "args": {"to": "ann", "body": "hello"}}
        return {"role": "assistant", "content": "", "tool_calls": [call]}
    return {"role": "assistant", "content": f"done: {messages[-1]['content']}"}


def test_the_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    sent: list[str] = []
    run_example(answer, sent, "write to Ann")
    assert capsys.readouterr().out == "done: sent\n"
    assert sent == ["ann"]


def test_the_example_resumes_without_sending_twice(capsys: pytest.CaptureFixture[str]) -> None:
    sent: list[str] = []
    died: list[bool] = []

    class Died(BaseException):
        """The process dies here."""

    def dies_once(messages: list[dict[str, object]]) -> dict[str, object]:
        if len(messages) > 1 and not died:
            died.append(True)
            raise Died
        return answer(messages)

    with pytest.raises(Died):
        run_example(dies_once, sent, "write to Ann")
    assert sent == ["ann"]
    run_example(dies_once, sent, "write to Ann")
    run_example(dies_once, sent, "write to Ann")  # finished: the recorded result
    assert capsys.readouterr().out == "done: sent\ndone: sent\n"
    assert sent == ["ann"]


def test_the_example_does_not_lose_a_failure() -> None:
    def fails(messages: list[dict[str, object]]) -> dict[str, object]:
        raise ValueError("no such model")

    with pytest.raises(RunFailedError, match="no such model"):
        run_example(fails, [], "write to Ann")


def test_the_commands_of_the_readme_are_targets() -> None:
    text = (ROOT / "README.md").read_text()
    makefile = (ROOT / "Makefile").read_text()
    for target in set(re.findall(r"(?:^|`)make ([a-z]+)", text, re.M)):
        assert re.search(rf"^{target}:", makefile, re.M), target


def test_the_links_of_the_readme_lead_somewhere() -> None:
    text = (ROOT / "README.md").read_text()
    links = set(re.findall(r"\]\(([^)#]+)\)", text))
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_what_the_readme_names_is_there() -> None:
    text = (ROOT / "README.md").read_text()
    names = set(re.findall(r"`(?:@?recovery\.)(\w+)[(.`]", text))
    assert "current_call" in names
    missing = [name for name in names if not hasattr(recovery, name)]
    assert [name for name in missing if find_spec(f"recovery.{name}") is None] == []
    methods = set(re.findall(r"\b(?:store|agent)\.run\([^`]*?\)\.(\w+)\(", text))
    assert {"fork", "signal", "resolve", "events"} <= methods
    assert [name for name in methods if not hasattr(recovery.RunHandle, name)] == []
    for method in re.findall(r"`run\.(\w+)\(", text):
        assert hasattr(recovery.Run, method), method
    for options in re.findall(r"`@tool\(([^`]*)\)`", text):
        for option in re.findall(r"(\w+)=", re.sub(r"\([^)]*\)", "", options)):
            assert option in ToolOptions.__annotations__, option
