"""Completion of the shell."""

from __future__ import annotations

import builtins
import subprocess
from typing import Any

import pytest
from logdump._commands import COMMANDS

from tests.cli.harness import RUNS, call


def test_the_script_is_one_of_the_shell_and_knows_the_commands() -> None:
    script = call("logdump", "--print-completion", "bash", cwd=RUNS).out
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    assert all(command.name in script for command in COMMANDS)
    assert "--redact" in script


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_there_is_one_for_each_shell_of_the_documentation(shell: str) -> None:
    done = call("logdump", "--print-completion", shell, cwd=RUNS)
    assert done.code == 0 and all(command.name in done.out for command in COMMANDS)


def test_without_shtab_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any) -> Any:
        if name == "shtab":
            raise ImportError(name)
        return real(name, *args)

    monkeypatch.setattr(builtins, "__import__", without)
    done = call("logdump", "--print-completion", "bash", cwd=RUNS)
    assert done.code == 64 and "agent-eventlog[cli]" in done.err
    assert call("logdump", "--help", cwd=RUNS).code == 0


def test_recovery_brings_its_own() -> None:
    assert "--install-completion" in call("recovery", "--help", cwd=RUNS).out
