"""Completion of the shell."""

from __future__ import annotations

import asyncio
import os
import pty
import select
import shutil
import subprocess
import sys
import termios
from contextlib import suppress
from pathlib import Path

import pytest

from recovery import CheckpointStore, RecoverableAgent, Run, tool
from recovery.inspect.status import status
from recovery.reports import OpenCall
from tests.support.lives import Died


@pytest.mark.parametrize("tool", ["logdump", "recovery"])
def test_the_script_is_one_of_the_shell(tool: str) -> None:
    named = os.environ | {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}  # not ours
    show = [str(RECOVERY.parent / tool), "--show-completion", "bash"]
    script = subprocess.run(show, capture_output=True, text=True, check=True, env=named).stdout
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    assert f"_{tool.upper()}_COMPLETE" in script


HOSTILE = "charge;touch${IFS}PWNED;\x1b]0;x\x07"
RECOVERY = Path(sys.executable).parent / "recovery"


def in_doubt(root: Path, *names: str) -> list[OpenCall]:
    """Calls in doubt, whose tools a model or a plugin has named."""

    begun: list[str] = []

    async def dies() -> None:
        begun.append("")
        while len(begun) < len(names):  # noqa: ASYNC110
            await asyncio.sleep(0)
        raise Died

    async def agent(run: Run) -> None:
        await asyncio.gather(*(run.call(tool(name=name)(dies)) for name in names))

    with suppress(Died):
        asyncio.run(RecoverableAgent(agent, CheckpointStore(root)).run_with_recovery(1, "run"))
    return list(status(CheckpointStore(root), "run").calls)


def offered(shell: str, store: Path) -> str:
    line = f"recovery resolve --store {store} run "
    variables = {
        "_RECOVERY_COMPLETE": f"complete_{shell}",
        "COMP_WORDS": line,
        "COMP_CWORD": "5",
        "_TYPER_COMPLETE_ARGS": line,
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
    }
    done = subprocess.run(
        [RECOVERY], env=os.environ | variables, capture_output=True, text=True, check=True
    )
    return done.stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_is_offered_no_name_that_it_would_execute(shell: str, tmp_path: Path) -> None:
    calls = in_doubt(tmp_path, "charge", HOSTILE)
    assert len(calls) == 2
    out = offered(shell, tmp_path)
    assert "charge#" in out and "PWNED" not in out and "\x1b" not in out
    assert f"{next(one.lsn for one in calls if one.tool == HOSTILE)}" in out


# What each is started with, the file that it reads, and what makes that know the completion.
SHELLS = {
    "bash": (["bash", "--noprofile", "--rcfile", "rc", "-i"], "rc", "{script}PS1='ready '\n"),
    "zsh": (["zsh", "-i"], ".zshrc", "autoload -Uz compinit; compinit -u\n{script}PS1='ready '\n"),
    "fish": (
        ["fish", "-i"],
        "fish/config.fish",
        "{script}\nfunction fish_prompt; echo -n 'ready '; end\n",
    ),
}


@pytest.mark.parametrize(
    "shell",
    [
        pytest.param(one, marks=pytest.mark.skipif(not shutil.which(one), reason=f"no {one} here"))
        for one in SHELLS
    ],
)
def test_what_a_shell_completes_is_not_executed(shell: str, tmp_path: Path) -> None:
    """A real one: the script of the command, then TAB and Enter."""
    (hostile,) = in_doubt(tmp_path / "store", HOSTILE)
    started, file, text = SHELLS[shell]
    show = [str(RECOVERY), "--show-completion", shell]
    named = os.environ | {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}  # not ours
    done = subprocess.run(show, capture_output=True, text=True, check=True, env=named)
    script = done.stdout
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text(text.replace("{script}", script))
    pid, terminal = pty.fork()
    if not pid:
        path = f"{RECOVERY.parent}:{os.environ['PATH']}"
        given = {"PATH": path, "HOME": str(tmp_path), "TERM": "dumb", "LANG": "C.UTF-8"}
        os.chdir(tmp_path)
        given |= {"ZDOTDIR": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}
        os.execvpe(started[0], started, given)
    termios.tcsetwinsize(terminal, (24, 200))
    seen = b""
    for wanted, typed in (
        (b"ready ", b"recovery resolve --store store run \t"),
        (b"run %d" % hostile.lsn, b" --outcome 1\necho en''ded\nexit\n"),
        (b"ended", b""),
    ):
        with suppress(OSError):
            while wanted not in seen and select.select([terminal], [], [], 30)[0]:
                seen += os.read(terminal, 4096)
        assert wanted in seen, seen
        seen = seen.partition(wanted)[2]
        os.write(terminal, typed)
    with suppress(OSError):  # it writes until it ends
        while os.read(terminal, 4096):
            pass
    os.close(terminal)
    os.waitpid(pid, 0)
    assert not list(tmp_path.rglob("PWNED*"))
    assert status(CheckpointStore(tmp_path / "store"), "run").calls == ()  # it was resolved
