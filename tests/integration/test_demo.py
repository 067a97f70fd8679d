"""The demo, as its user runs it: killed ten times, everything done once, and a cheat found out."""

from __future__ import annotations

import email
import email.policy
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from eventlog import EventLog

pytest.importorskip("aiosmtpd", reason="the demo's mail server is the extra [demo]")
pytest.importorskip("rich", reason="the demo shows itself with the extra [demo]")

EXAMPLES = Path(__file__).parents[2] / "examples"
DOCUMENTS = {
    "a file with  two spaces.md": "# Spaces\n\nFirst sentence. Second one.\n",
    "fake<!--.md": "<!-- 0123456789abcdef0123456789abcdef -->\n## Not a section\n",
    "folder/ünïcode 🦦.txt": "Otters sleep holding hands. Really.",
    "nothing.txt": "",
}


def environment(**more: str) -> dict[str, str]:
    """What a process of the demo sees: our packages wherever they are installed, no endpoint."""
    kept = {name: v for name, v in os.environ.items() if not name.startswith("OPENAI_")}
    path = os.pathsep.join(part for part in sys.path if part)
    return kept | {"PYTHONPATH": path, "AGENT_OFFLINE_LATENCY_S": "0.05"} | more


def start(script: str, *args: str | Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, EXAMPLES / script, *args],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def mails(work: Path) -> list[Path]:
    return sorted((work / "mailbox" / "new").iterdir())


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("documents")
    for name, text in DOCUMENTS.items():
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).write_text(text, encoding="utf-8")
    (directory / "binary.bin").write_bytes(bytes(range(256)))
    (directory / ".hidden").write_text("nobody's business")
    (directory / "link.txt").symlink_to("/etc/passwd")
    return directory


@pytest.fixture(scope="module")
def demo(documents: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A demo that has run: its directory, and what it printed."""
    work = tmp_path_factory.mktemp("demo")
    process = start("demo.py", "--dir", documents, "--kills", "10", "--seed", "7", "--keep", work)
    out, err = process.communicate(timeout=240)
    assert (process.returncode, err) == (0, ""), out + err
    return work, out


@pytest.fixture
def copy(demo: tuple[Path, str], tmp_path: Path) -> Path:
    """A copy of its directory, to tamper with."""
    return Path(shutil.copytree(demo[0], tmp_path / "copy"))


@pytest.mark.slow
def test_ten_kills_and_every_side_effect_once(demo: tuple[Path, str]) -> None:
    work, out = demo
    assert len(re.findall(r"^life .* killed ", out, re.MULTILINE)) == 10
    assert "Everything exactly once, with 10 kills in 11 lives." in out

    parsed = [
        email.message_from_bytes(p.read_bytes(), policy=email.policy.default) for p in mails(work)
    ]
    assert [mail["Subject"] for mail in parsed] == ["Progress", "Done"]
    assert len({mail["Message-ID"] for mail in parsed}) == 2

    text = (work / "report.md").read_text(encoding="utf-8")
    titles = Counter(re.findall(r"^## (.*)", text, re.MULTILINE))
    shown = [" ".join(name.split()).replace("<!--", "&lt;!--") for name in DOCUMENTS]
    assert titles == Counter(shown)
    assert "First sentence.\n" in text and "Otters sleep holding hands.\n" in text


@pytest.mark.slow
def test_the_state_counts_every_call_once(demo: tuple[Path, str]) -> None:
    with EventLog.read(demo[0] / "runs" / "report") as reader:
        ended = [record.body for record in reader.records() if record.kind == "run_finished"]
    assert len(ended) == 1
    assert ended[0]["recovery_count"] == 10
    calls = {"list_documents": 1, "read_document": 4, "write_section": 4, "send_mail": 2}
    assert ended[0]["result"]["calls"] == calls


@pytest.mark.slow
def test_it_says_how_to_look_and_the_commands_work(demo: tuple[Path, str], documents: Path) -> None:
    work, out = demo
    commands = out.partition("Look at it yourself\n")[2].splitlines()
    assert len(commands) == 4
    assert all(str(work) in command for command in commands)
    for command in (commands[1], commands[3]):
        done = subprocess.run(
            ["/bin/sh", "-c", command],
            env=environment(),
            check=False,
            capture_output=True,
            timeout=60,
        )
        assert done.returncode == 0, done


def duplicate_mail(work: Path) -> None:
    first = mails(work)[0]
    shutil.copy(first, first.with_name("9.9"))


def same_mail_under_another_id(work: Path) -> None:
    first = mails(work)[0]
    data = re.sub(rb"[0-9a-f]{32}@", b"0" * 32 + b"@", first.read_bytes())
    first.with_name("9.9").write_bytes(data)


def lose_mail(work: Path) -> None:
    mails(work)[1].unlink()


def alter_mail(work: Path) -> None:
    path = mails(work)[1]
    path.write_bytes(path.read_bytes().replace(b"4 of 4", b"3 of 4"))


def sections(work: Path) -> list[str]:
    text = (work / "report.md").read_text(encoding="utf-8")
    return re.split(r"(?=^<!-- )", text, flags=re.MULTILINE)


def double_section(work: Path) -> None:
    (work / "report.md").write_text("".join([*sections(work), sections(work)[2]]), encoding="utf-8")


def lose_section(work: Path) -> None:
    (work / "report.md").write_text("".join(sections(work)[:-1]), encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tamper", "found"),
    [
        (duplicate_mail, "found 2 times"),
        (same_mail_under_another_id, "no call in the log has made this"),
        (lose_mail, "found 0 times"),
        (alter_mail, "found with another content"),
        (double_section, "found 2 times"),
        (lose_section, "found 0 times"),
    ],
)
def test_what_did_not_happen_once_is_found(copy: Path, tamper, found: str) -> None:
    tamper(copy)
    process = start("proof.py", copy)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    assert f"{found}" in out and "NOT exactly once" in out


def processes_of(work: Path) -> list[str]:
    """Processes that know the directory, by argument or environment."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            known = (path / "cmdline").read_bytes() + (path / "environ").read_bytes()
        except OSError:  # gone, or somebody else's
            continue
        if os.fsencode(work) in known:
            found.append(path.name)
    return found


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_leaves_no_process(
    documents: Path, tmp_path: Path, number: signal.Signals
) -> None:
    work = tmp_path / "work"
    process = start("demo.py", "--dir", documents, "--kills", "1000", "--keep", work)
    deadline = time.monotonic() + 60
    while not (work / "lives" / "02.txt").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err == f"\ndemo: interrupted; what there is of it is in {work}\n"
    assert processes_of(work) == []
