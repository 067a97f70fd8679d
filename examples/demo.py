"""Kill a working agent again and again, and see that it does everything exactly once.

Starts a mail server, and the agent (agent.py) as a process of its own; kills the agent with SIGKILL
at random instants and starts it again; at the end holds mailbox and report against the log.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import documents
import models
import proof
from following import Follower

from eventlog import LogError

try:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text
except ImportError:
    sys.exit("The demo shows itself with rich: pip install 'agent-eventlog[demo]'")

HERE = Path(__file__).resolve().parent
HUNG_S = 300.0  # without a new record
SIDE_EFFECTS = ("write_section", "send_mail")

_interrupted = threading.Event()


class DemoError(Exception):
    """Why the demo cannot go on."""


@dataclass(frozen=True)
class Plan:
    """When to kill a life: at its n-th result, or earlier when something is seen: a side effect
    about to be made ("call"), a new mail, a new section; and then a moment later."""

    results: int
    effect: str
    delay_s: float


class Demo:
    """The supervisor."""

    def __init__(self, args: argparse.Namespace, work: Path, source: Path) -> None:
        self.work, self.source, self.wanted = work, source, args.kills
        self.out = Console(highlight=False)
        self.follower = Follower(work / "runs" / proof.RUN_ID)
        self.kills = self.lives = 0
        self._rng = random.Random(args.seed)
        # The model's calls, a read and a section for each document, mails.
        n = len(documents.listing(source))
        self._results_in_all = 3 * n + (n + 1) // 2 + (n - 1) // 3 + 5

    def introduce(self, seed: int) -> None:
        """Say what is going to happen, to what, and where."""
        offline = "offline and deterministic (OPENAI_BASE_URL or OPENAI_API_KEY: a real one)"
        where = os.environ.get("OPENAI_BASE_URL") or "api.openai.com"
        model = offline if models.is_offline() else f"{models.MODEL} at {where}"
        count = len(documents.listing(self.source))
        self.out.print(
            "[bold]An agent reads, writes a report and sends mails, and is killed "
            f"{self.wanted} times[/bold]"
        )
        for name, value in (
            ("documents", f"{count} in {self.source}"),
            ("model", model),
            ("seed", seed),
            ("all in", self.work),
        ):
            self.out.print(f"{name:<9}  {value}", markup=False, soft_wrap=True)
        self.out.print()

    def run(self) -> None:
        """Let the agent finish, over as many lives as that takes."""
        with _mail_server(self.work) as port:
            settings = {"DOCUMENTS": self.source, "WORK": self.work, "SMTP_PORT": port}
            environment = os.environ | {f"AGENT_{key}": str(v) for key, v in settings.items()}
            while self._live(environment):
                pass

    def _live(self, environment: dict[str, str]) -> bool:
        """One life of the agent. Whether it was killed; else it has finished."""
        self.lives += 1
        before = self.follower.progress.results
        began = time.monotonic()
        with _agent(environment, self._said(self.lives)) as process:
            killed = self._watch(process)
        self.follower.catch_up_to_the_end()
        progress = self.follower.progress
        if not killed and process.returncode != 0:
            said = self._said(self.lives)
            end = said.read_text(errors="replace").strip()[-1000:].rpartition("\n")[2]
            raise DemoError(f"the agent gave up (see {said}): {end}")
        self.kills += killed
        inside = " and ".join(progress.under_way.values())
        how = f"killed {f'in {inside}' if inside else 'between calls'}" if killed else "finished"
        self.out.print(
            f"life {self.lives:>2}  {time.monotonic() - began:4.1f} s  step {progress.step:>2}  "
            f"{progress.results - before:>2} new results  {how}"
        )
        return killed

    def _watch(self, process: subprocess.Popen[bytes]) -> bool:
        """Wait until the process ends, or the moment to kill it has come; whether it was killed."""
        plan = self._plan() if self.kills < self.wanted else None
        follower, results = self.follower, self.follower.progress.results
        effect, records, quiet_since = self._seen(plan), 0, time.monotonic()
        with self.out.status("") as status:
            while process.poll() is None:
                if _interrupted.is_set():
                    raise KeyboardInterrupt
                if new := follower.catch_up():
                    records, quiet_since = records + new, time.monotonic()
                    status.update(self._status())
                if time.monotonic() - quiet_since > HUNG_S:
                    raise DemoError(f"the agent has done nothing for {HUNG_S:.0f} s")
                done = follower.progress.results - results
                if plan and records and (done >= plan.results or self._seen(plan) != effect):
                    time.sleep(plan.delay_s)
                    process.kill()
                    break
                time.sleep(0.0005)
            return process.wait() == -signal.SIGKILL

    def _plan(self) -> Plan:
        """When to kill the next life: such that there is work left for the kills after it."""
        left = self._results_in_all - self.follower.progress.results
        kills_left = self.wanted - self.kills
        share = left / (kills_left + 1) - 0.5  # what is under way at a kill often gets done, too
        results = self._rng.randint(1, max(1, round(2 * share) - 1))
        if share < 1 and self._rng.random() > share:
            results = 0
        effect = self._rng.choice(["", "call", "mail", "report"])
        if effect:  # look out for it longer
            results = max(results, min(3 * results, left - 2 * kills_left))
            return Plan(results, effect, self._rng.choice([0.0, self._rng.uniform(0, 0.02)]))
        return Plan(results, "", self._rng.uniform(0, self._rng.choice([0.02, models.LATENCY_S])))

    def _seen(self, plan: Plan | None) -> int:
        """A number that changes when the effect is there that the plan waits for."""
        if plan is None or not plan.effect:
            return 0
        if plan.effect == "call":
            under_way = self.follower.progress.under_way.items()
            return max((lsn for lsn, tool in under_way if tool in SIDE_EFFECTS), default=0)
        if plan.effect == "mail":
            return sum(1 for _ in (self.work / "mailbox" / "new").iterdir())
        try:
            return (self.work / "report.md").stat().st_ino
        except FileNotFoundError:
            return 0

    def _status(self) -> str:
        progress = self.follower.progress
        doing = ", ".join(progress.under_way.values()) or "thinking"
        return f"life {self.lives}, step {progress.step}: {doing}  ({self.kills} kills so far)"

    def _said(self, life: int) -> Path:
        return self.work / "lives" / f"{life:02}.txt"

    def conclude(self) -> bool:
        """Show what happened; whether everything happened exactly once."""
        every = self.source if models.is_offline() else None
        lines, problems = proof.check(self.work, every)
        self._show("What each recovery found", self._recoveries())
        self._show("Calls that a kill left in doubt, and what became of them", self._settled())
        self.out.print("\n[bold]Seen from outside[/bold]")
        for line in lines:
            self.out.print(line, markup=False)
        for problem in problems:
            self.out.print(f"WRONG  {problem}", style="bold red", markup=False)
        verdict = "Something did NOT happen exactly once" if problems else "Everything exactly once"
        self.out.print(
            f"\n{verdict}, with {self.kills} kills in {self.lives} lives.",
            style="bold red" if problems else "bold green",
        )
        if self.kills < self.wanted:
            self.out.print(f"(The work was done before it could be killed {self.wanted} times.)")
        self._show_commands(every)
        return not problems

    def _show(self, title: str, rows: Iterable[tuple[str, str]]) -> None:
        table = Table.grid(padding=(0, 2))
        table.add_column(no_wrap=True)
        for head, text in rows:
            table.add_row(Text(head), Text(text))
        if table.rows:
            self.out.print(f"\n[bold]{title}[/bold]", table)

    def _recoveries(self) -> Iterator[tuple[str, str]]:
        for life in range(2, self.lives + 1):
            said = self._said(life).read_text(errors="replace")
            reports = re.findall(r"^run \S+: (recovery .*)", said, re.MULTILINE)
            # Of the last life it is the report at the end, with what was served and executed.
            report = reports[-1] if reports else "killed before it got there"
            yield f"life {life:>2}", report.replace("; 0 calls served from the log; 0 executed", "")

    def _settled(self) -> Iterator[tuple[str, str]]:
        calls = [
            call for call in proof.logged_calls(self.work / "runs" / proof.RUN_ID) if call.settled
        ]
        for call in calls:
            if call.tool in SIDE_EFFECTS:
                yield f"LSN {call.lsn:>3}", f"{call}: {'; then '.join(call.settled)}"
        for tool in dict.fromkeys(call.tool for call in calls if call.tool not in SIDE_EFFECTS):
            times = sum(len(call.settled) for call in calls if call.tool == tool)
            yield "", f"{tool}: harmless, made again ({times} in all)"

    def _show_commands(self, every: Path | None) -> None:
        beside = Path(sys.executable).with_name("logdump")
        logdump = [str(beside)] if beside.exists() else [sys.executable, "-m", "logdump"]
        log = self.work / "runs" / proof.RUN_ID
        again = [sys.executable, str(HERE / "proof.py"), str(self.work)]
        again += [] if every is None else [str(every)]
        self.out.print("\n[bold]Look at it yourself[/bold]")
        for command in (
            [*logdump, "dump", str(log)],
            [*logdump, "verify", str(log)],
            ["cat", str(self.work / "report.md")],
            again,
        ):
            self.out.print(shlex.join(command), markup=False, soft_wrap=True)


@contextmanager
def _agent(environment: dict[str, str], said: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The agent as a process, which is gone in any case in the end; what it prints is in a file."""
    with said.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, str(HERE / "agent.py")],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            process_group=0,  # Ctrl-C is for the demo, which ends the others itself
        )
        try:
            yield process
        finally:
            process.kill()
            process.wait()


@contextmanager
def _mail_server(work: Path) -> Iterator[int]:
    """A mail server as a process; its port."""
    with (work / "mailserver.txt").open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, str(HERE / "mailserver.py"), str(work / "mailbox")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=file,
            process_group=0,
        )
        assert process.stdin is not None and process.stdout is not None
        try:
            port = process.stdout.readline()
            if not port:
                said = (work / "mailserver.txt").read_text(errors="replace")
                raise DemoError(f"the mail server does not start:\n{said}")
            yield int(port)
        finally:
            process.kill()  # what it has accepted is on disk
            process.wait()
            process.stdin.close()
            process.stdout.close()


def _documents(given: Path | None, work: Path) -> Path:
    """The directory to read: the given one, or a copy of this project's README and docs."""
    if given is not None:
        return given.resolve()
    source = work / "documents"
    source.mkdir()
    for path in (HERE.parent / "README.md", HERE.parent / "docs"):
        if path.is_dir():
            shutil.copytree(path, source / path.name)
        elif path.exists():
            shutil.copy(path, source)
    return source


def _work(keep: Path | None) -> Path:
    """An empty directory for everything that the demo makes."""
    if keep is None:
        return Path(tempfile.mkdtemp(prefix="agent-eventlog-demo-"))
    keep.mkdir(parents=True, exist_ok=True)
    if any(keep.iterdir()):
        raise DemoError(f"{keep} is not empty")
    return keep.resolve()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", type=Path, help="documents to read (default: this project's own)")
    parser.add_argument("--kills", type=int, default=10, help="how often to kill (default: 10)")
    parser.add_argument("--seed", type=int, help="repeats the choices of an earlier run")
    parser.add_argument(
        "--keep",
        type=Path,
        help="where to put everything (default: a new directory for temporary files)",
    )
    args = parser.parse_args()
    if args.kills < 0:
        parser.error("--kills is 0 or more")
    if args.dir is not None and not args.dir.is_dir():
        parser.error(f"{args.dir} is not a directory")
    if args.seed is None:
        args.seed = random.SystemRandom().randrange(1 << 32)
    return args


def _interrupt(*_: object) -> None:
    # Raised right here, the first one could come between the start of a process and the place that
    # will end it.
    if _interrupted.is_set():
        raise KeyboardInterrupt
    _interrupted.set()


def main() -> int:
    args = _arguments()
    signal.signal(signal.SIGINT, _interrupt)
    signal.signal(signal.SIGTERM, _interrupt)
    work = None
    try:
        work = _work(args.keep)
        source = _documents(args.dir, work)
        if not documents.listing(source):
            raise DemoError(f"there are no text files in {source}")
        (work / "lives").mkdir()
        demo = Demo(args, work, source)
        demo.introduce(args.seed)
        demo.run()
        return 0 if demo.conclude() else 1
    except (DemoError, LogError, OSError) as exc:
        print(f"demo: {exc}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"\ndemo: interrupted; what there is of it is in {work}", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
