"""Whether a program means the same when it goes on behind a checkpoint.

There the code before the loop runs again, with the state and the messages of the checkpoint: what
it writes was written before, and its calls are served. A local variable that is not made the same
by that is lost. One that the loop changes is told when the agent is first run; one that was
computed from what the state was at the very start is not: such programs have no checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.model import language as l
from tests.model import values as v
from tests.model.oracle import Facts, RaisedError, _Frame, _Oracle
from tests.model.search import Search

READS = (l.Get, l.Last, l.Lacks, l.Silent)
SIMPLE = (l.Call, l.Say, l.Put, l.If, l.Let, l.Ask, *READS, l.Lit, l.Var, l.Odd, l.Task)


def lost(program: l.Program) -> str:
    """How a local variable is lost behind a checkpoint that may be taken: "changed" in the loop,
    "computed" before it; "" when none is."""
    if not program.agents:
        return ""
    watching = _Watching(program)
    watching.run("task")
    return watching.lost


class _Watching(_Oracle):
    def __init__(self, program: l.Program) -> None:
        super().__init__(program, Facts(), Search(1))
        self.lost = ""
        self.made: list[tuple[int, str, Any]] | None = None  # calls before the loop
        self.again: list[tuple[int, str, Any]] | None = None  # what is left of them to be served

    def agent(self, agent: l.Agent, frame: _Frame) -> list[str]:
        main = agent is self.program.agents[0]
        if not main:
            return super().agent(agent, frame)
        reads = any(isinstance(one, READS) for one in l.walk(agent.prologue))
        simple = all(isinstance(one, SIMPLE) for one in l.walk(agent.prologue))
        self.home, self.made = frame, []
        self.block(agent.prologue, frame)
        made, self.made = self.made, None
        for number, block in enumerate(agent.steps):
            used = {
                one.name
                for one in l.walk((*agent.steps[number:], *agent.result))
                if isinstance(one, l.Var | l.Let)
            }
            if number and reads and used & frame.env.keys():
                if not (simple and self.is_same(agent, frame, made, used)):
                    self.lost = "computed"
            elif number:
                changed = {
                    one.name for one in l.walk(agent.steps[:number]) if isinstance(one, l.Let)
                }
                if changed & used:
                    self.lost = self.lost or "changed"
            self.block(block, frame)
        return [v.text(self.value(one, frame)) for one in agent.result]

    def is_same(self, agent: l.Agent, frame: _Frame, made: list[Any], used: set[str]) -> bool:
        fresh = _Frame({}, frame.task, dict(frame.state), list(frame.messages))
        self.again = list(made)
        try:
            self.block(agent.prologue, fresh)
        except (LookupError, RaisedError):
            return False
        finally:
            self.again = None
        before = {
            one.name if isinstance(one, l.Let) else one.var
            for one in l.walk(agent.prologue)
            if isinstance(one, l.Let | l.Call | l.Ask)
        }
        return all(
            name in fresh.env and v.full(fresh.env[name]) == v.full(frame.env[name])
            for name in before & used
            if name in frame.env
        )

    def simple(self, one: l.Term, frame: _Frame) -> None:
        if self.again is None or not isinstance(one, l.Put | l.Say):
            super().simple(one, frame)

    def call(self, call: l.Call, frame: _Frame) -> Any:
        key = v.text(self.value(call.arg, frame))
        if self.again is not None:
            return self.served(
                lambda tool, arg: tool == call.tool and arg == key,
                lambda tool, arg: tool == call.tool,
            )
        found = super().call(call, frame)
        if self.made is not None and frame is self.home:
            self.made.append((call.tool, key, found))
        return found

    def served(self, *fitting: Callable[[int, str], bool]) -> Any:
        assert self.again is not None
        for fits in fitting:
            for number, (tool, arg, found) in enumerate(self.again):
                if fits(tool, arg):
                    del self.again[number]
                    return found
        raise LookupError("a new call")
