"""The agents that users copy from, killed at every point: the example, and the README's."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any, ClassVar

import pytest

from recovery.testing import CrashReport, crash_everywhere
from tests.support.pages import blocks, run_page
from tests.support.paths import ROOT

DOCUMENTS = {
    "a.md": "# A\n\nOtters swim.\n",
    "b.md": "Otters sleep.\n",
    "c.md": "Otters eat.\n",
    "d.md": "Otters play.\n",
}


class MailServer:
    """What the example uses of smtplib.SMTP; keeps what arrives."""

    mailbox: ClassVar[dict[str, str]] = {}

    def __init__(self, *address: Any, **options: Any) -> None: ...

    def __enter__(self) -> MailServer:
        return self

    def __exit__(self, *exc: object) -> None: ...

    def ehlo(self) -> None: ...

    def verify(self, message_id: str) -> tuple[int, bytes]:
        return (250 if f"<{message_id}>" in self.mailbox else 550), b""

    def send_message(self, mail: Any) -> None:
        if mail["Message-ID"] in self.mailbox:
            raise AssertionError("the same mail a second time")
        self.mailbox[mail["Message-ID"]] = mail["Subject"]


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The example agent, with documents to read and a mail server of its own."""
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    for name in ("OPENAI_BASE_URL", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    import agent

    documents = tmp_path / "documents"
    documents.mkdir()
    for name, text in DOCUMENTS.items():
        (documents / name).write_text(text)
    monkeypatch.setattr(agent, "DOCUMENTS", documents)
    monkeypatch.setattr(agent, "WORK", tmp_path)
    monkeypatch.setattr("smtplib.SMTP", MailServer)
    yield agent
    MailServer.mailbox.clear()
    for name in ("agent", "documents", "models", "report"):
        sys.modules.pop(name, None)


def sweep_example(agent: Any, **options: Any) -> CrashReport:
    import report

    written = agent.WORK / "report.md"

    def setup() -> None:
        written.unlink(missing_ok=True)
        MailServer.mailbox.clear()

    def effects() -> list[Any]:
        sections = [text for _, text in report.sections(written)]
        return [*sections, *MailServer.mailbox.items()]

    return crash_everywhere(agent.write_report, agent.TASK, setup=setup, effects=effects, **options)


def test_the_example_survives_a_crash_anywhere(example: Any, rng: random.Random) -> None:
    report = sweep_example(example, points=16, seed=rng.randrange(1 << 20))
    assert report.ok, str(report)
    assert not [found for found in report.findings if found.kind == "in doubt"], str(report)
    assert report.effects == {
        "ask_model": 9,
        "list_documents": 1,
        "read_document": 4,
        "write_section": 4,
        "send_mail": 2,
    }
    assert report.reference == repr(
        {
            "answer": "4 of 4 documents are in the report.",
            "calls": {"list_documents": 1, "read_document": 4, "write_section": 4, "send_mail": 2},
        }
    )


@pytest.mark.crash
def test_the_example_survives_a_crash_at_every_point(example: Any, capsys: Any) -> None:
    report = sweep_example(example, points="all", power_loss=True)
    assert report.ok, str(report)
    with capsys.disabled():
        print(f"\nexample: {report.points} crash points, {report.resumptions} resumptions")


def test_the_example_without_its_reconcile_function_is_found_out(
    example: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MailServer, "verify", lambda self, message_id: (550, b""))
    points = [f"after send_mail#{n} took effect, before that was recorded" for n in (1, 2)]
    monkeypatch.setattr(
        MailServer,
        "send_message",
        lambda self, mail: self.mailbox.update(
            {f"{mail['Message-ID']} {len(self.mailbox)}": mail["Subject"]}
        ),
    )
    report = sweep_example(example, points=points)
    assert {(found.kind, found.tool) for found in report.failures} == {("ran twice", "send_mail")}
    assert "its reconcile function said that it had not happened" in str(report)


def test_the_agent_of_the_readme_survives() -> None:
    code, test = blocks("README.md")
    sent: list[str] = []
    names: dict[str, Any] = {"print": sent.append, "__name__": "readme"}
    run_page("README.md", [code], names)
    report = crash_everywhere(names["assistant"], "write to Ann", effects=lambda: sent)
    assert report.ok, str(report)
    assert report.reference == "'Ann has her mail.'"
    assert {found.tool for found in report.findings if found.kind == "in doubt"} == {"send_email"}
    names["make_agent"] = names["assistant"]
    run_page("README.md", [test], names)
    names["test_my_agent_survives"]()
