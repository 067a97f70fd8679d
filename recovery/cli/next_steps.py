"""Suggests the next commands for a run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from shlex import quote

from recovery.agent_code.agent_name import UNKNOWN, agent_option
from recovery.reports import OpenCall, PendingMessage, RunStatus

CALLS_MAX = 5  # whose commands are shown
# Digits of an idempotency key in a command: 64 bits, so no two calls of a store share them.
KEY_SHOWN = 16
NOT_MADE_AGAIN = "it is not made again: the agent gets a ToolError"
_KIND = {"retry": "resolve"}  # commands whose messages have another kind

# What a program opens again, by the kind of the run.
_OPENED_BY = {"conversation": "RecordedLoop", "journal": "CallJournal"}


class Commands:
    """The commands about one run, ready to type except for words in capitals.

    ``store`` is the option that the user gave, if any; ``path``: of the run's log.
    """

    def __init__(
        self, run: str, store: str | None, path: str = "", key_file: str | None = None
    ) -> None:
        self.run, self._path = run, path
        self.agent = UNKNOWN
        self.signed: Sequence[str] = ()  # as in RunStatus
        self._key = f" --key-file {quote(key_file)}" if key_file is not None else ""
        self._store = f" --store {quote(store)}" if store is not None else ""
        self._where = self._store + self._key

    def of(self, verb: str, rest: str = "", run: str = "") -> str:
        """A command of ``recovery``."""
        sign = " --sign KEYFILE" * (_KIND.get(verb, verb) in self.signed)
        return f"recovery {verb} {quote(run or self.run)}{rest and ' '}{rest}{sign}{self._where}"

    def resolve(
        self, key: str, unclaimed: Sequence[int] = (), is_elsewhere: bool = False
    ) -> list[str]:
        """The commands that resolve a call in doubt. ``is_elsewhere``: see OpenCall.elsewhere."""
        read = [self.logdump(f"dump --full --lsn {lsn}") for lsn in unclaimed]
        again, other = "--retry", "it did not"
        if read:
            read[-1] += "   # an outcome, maybe of this call"
            again, other = "--retry --force", "only if that is another call's"
        if is_elsewhere:
            other = "; ".join(["only once that process has ended", *[other] * bool(read)])
            again = "--retry --force"
        how = {
            "--outcome JSON": "it took effect, and this is what it returned",
            again: other,
            "--fail TEXT": NOT_MADE_AGAIN,
        }
        return read + [
            f"{self.of('resolve', f'{key} {one}')}   # {why}" for one, why in how.items()
        ]

    def show(self, one: RunStatus) -> str:
        """The command that shows it."""
        if one.needs_key:
            return f"recovery show {quote(one.run_id)} --key-file FILE{self._store}"
        return self.of("show", run=one.run_id)

    def resume(self, run: str = "") -> str:
        """The command that resumes it."""
        return self.of("resume", f"--agent {self.agent}", run)

    def on_store(self, words: str) -> str:
        """A command of ``recovery`` about the whole store."""
        return f"recovery {words}{self._where}"

    def resume_due(self) -> str:
        """The command that resumes all runs that can continue."""
        return self.on_store(f"resume --due --agent {self.agent}")

    def logdump(self, verb: str) -> str:
        """A command of ``logdump``."""
        return f"logdump {verb}{self._key} {quote(self._path or self.run)}"

    def of_divergence(self, step: int) -> list[str]:
        """The commands for a run whose code diverged in this step."""
        return [
            f"{self.resume()}   # with the code that made the record; it may be in another module",
            f"{self.of('accept', '--why TEXT')}   # the new code counts: it may make them again",
            f"{self.of('fork', f'NEW_ID --at {max(step - 1, 0)}')}   # makes all later calls again",
            self.of("cancel"),
        ]

    def next(self, one: RunStatus) -> list[str]:
        """The next commands, the most important one first."""
        todo: list[str] = []
        self.signed = one.signed
        if self.agent == UNKNOWN and one.parent is None:
            self.agent = agent_option(one.agent_object, one.agent)
        sent = [message for message in one.unread if message.wanted]
        match one.state:
            case "submitted" | "finished" | "cancelled" | "undone" | "empty" | "saved":
                pass
            case "failed" if one.failed_call:
                again = self.of("retry", f"--agent {self.agent}")
                call = one.failed_call_key[:KEY_SHOWN] or one.failed_call
                how = [
                    self.of("resolve", f"{call} --outcome JSON"),
                    f"{self.of('resolve', f'{call} --fail TEXT')}   # once it catches ToolError",
                ]
                denied = "ApprovalDeniedError" in one.why.partition(":")[0]
                when = "it asks for approval again" if denied else "once the cause is mended"
                todo = [f"{again}   # {when}", *how]
            case "failed":
                at = max(one.progress.step - 1, 0)
                todo = [self.of("fork", f"NEW_ID --at {at}"), self.of("undo", "--tools MODULE")]
            case "damaged":
                todo = [self.logdump("verify"), self.logdump("repair")]
            case "unreadable" if one.needs_key:
                todo = [self.show(one)]
            case "unreadable" if one.damage:
                gone = f"{self.of('rm', '--force')}   # if there is none: nothing resumes the run"
                todo = [f"{self.logdump('verify')}   # then put its files back from a copy", gone]
            case "unreadable":
                todo = [self.logdump("verify")]
            case "running":
                todo = [
                    line for call in one.calls[:CALLS_MAX] for line in self._answers(call, sent)
                ]
                todo += [self.logdump("dump --follow"), self.of("cancel")]
            case _ if one.diverged and one.error is not None:
                todo = [*self._decisions(one.in_doubt, sent), *self.of_divergence(one.error.step)]
            case _:
                todo = [*self._decisions(one.calls, sent), *self._going_on(one)]
                todo += self._out_of_crashes(one)
        return todo

    def _going_on(self, one: RunStatus) -> Iterator[str]:
        opens = _OPENED_BY.get(one.kind)
        if opens is not None and one.parent is None:
            yield f"# run its program again, which opens {opens}({self.run!r})"
        else:
            failed = one.error is not None and one.error.of_code and not one.error.is_past
            note = "   # once its code is mended" * failed
            note = note or "   # once what kills it is mended" * bool(one.crash_loop)
            yield self.resume(one.parent.run_id if one.parent else "") + note
        if one.quarantined:
            again = self.on_store(f"worker {self.agent} --retry-quarantined")
            yield f"{again}   # once it is mended"

    def _decisions(
        self, calls: Sequence[OpenCall], sent: Sequence[PendingMessage]
    ) -> Iterator[str]:
        first = sorted(calls[:CALLS_MAX], key=lambda call: call.state != "in doubt")
        return (line for call in first for line in self._about(call, sent))

    def _out_of_crashes(self, one: RunStatus) -> Iterator[str]:
        """The commands by which a run does not do again what its processes die of."""
        if one.crash_loop:
            for call in one.in_doubt:
                if call.after_crash != "park":
                    key = call.idempotency_key[:KEY_SHOWN]
                    yield f"{self.of('resolve', f'{key} --fail TEXT')}   # {NOT_MADE_AGAIN}"
            yield self.of("fork", f"NEW_ID --at {max(one.progress.step - 1, 0)}")

    def _about(self, call: OpenCall, sent: Sequence[PendingMessage]) -> Iterator[str]:
        if call.child:
            yield self.of("show", run=call.child)
        elif call.state == "in doubt" and call.after_crash == "park":
            key, there = call.idempotency_key[:KEY_SHOWN], bool(call.elsewhere)
            yield from self.resolve(key, call.unclaimed_outcomes, there)
        else:
            yield from self._answers(call, sent)

    def _answers(self, call: OpenCall, sent: Sequence[PendingMessage]) -> Iterator[str]:
        """The signals that a call waits for and that were not sent yet."""
        if call.state == "asks" and not any(
            one.about == str(call.lsn) and not one.refused for one in sent
        ):
            key, sign = call.idempotency_key[:KEY_SHOWN], " --sign KEYFILE" * call.signed
            yield self.of("approve", f"{key}{sign}")
            yield self.of("deny", f"{key} --why TEXT{sign}")
        elif call.state == "waits" and call.tool == "wait_for":
            if any(one.kind == "signal" and one.about in call.signals for one in sent):
                return
            for name in call.signals:
                yield self.of("signal", f"{quote(name)} JSON")
