"""Defines the errors that stop a run, by what its user can do about them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from eventlog.errors import Damage
from eventlog.light_dataclass import light_dataclass
from recovery.text import SEALED_TEXT, quoted, shorten

__all__ = [
    "AmbiguousCallError",
    "ApprovalDeniedError",
    "BudgetError",
    "ChildFailedError",
    "ChildParkedError",
    "DamagedRunError",
    "DivergenceError",
    "ForgottenError",
    "InDoubtError",
    "LeftBehindError",
    "NoAnswerError",
    "NoSoundCheckpointError",
    "NotAwaitedError",
    "ParkedError",
    "PermanentError",
    "RecoveryError",
    "RunCancelledError",
    "RunFailedError",
    "RunUndoneError",
    "StoppedError",
    "SubjectKeysError",
    "TaskMismatchError",
    "ToolError",
    "UndoError",
    "UnreadableValueError",
    "UnrecordedResultError",
    "WaitingError",
]


CHOICES = "The record is untouched"  # begins what a user can do about a divergence


class RecoveryError(Exception):
    """Base of the errors of this package."""


class LeftBehindError(RecoveryError):
    """A task does work whose result no code awaits any more."""

    def __init__(self, run_id: str) -> None:
        super().__init__(
            f"run {run_id!r} is over, or was recovered, or makes the call around this one again, "
            "since this task began: its work does not count any more"
        )


class TaskMismatchError(RecoveryError):
    """The run exists, with another task or, if it was submitted, another agent (``what``). Nothing
    was executed or written.

    Use another ``run_id`` for the new one, or pass ``recorded`` to resume the old one.
    """

    def __init__(
        self, run_id: str, recorded: Any, given: Any, is_sealed: bool = False, what: str = "task"
    ) -> None:
        self.run_id, self.recorded, self.given = run_id, recorded, given
        was, now = (SEALED_TEXT if is_sealed else shorten(one, 2000) for one in (recorded, given))
        super().__init__(
            f"run {run_id!r} is about another {what}. Nothing was executed.\n"
            f"  recorded: {was}\n  given:    {now}\n"
            f"Use another run_id for the new {what}, or give the recorded one to resume this run."
        )


@light_dataclass
class Sides:
    """Both sides of a divergence: the record ``lsn`` (0: none), and what the code does.

    ``differences`` has a line for each difference: its path, the recorded value, the one of now.
    """

    lsn: int
    recorded: str
    found: str
    differences: tuple[str, ...] = ()


@light_dataclass
class Ambiguity:
    """Why a call could be taken for another one: the positions of the functions that make the two,
    and the names of the captured values that differ; or the class of an object that a person asked
    for approval could not identify."""

    tool: str
    first: str
    second: str
    names: tuple[str, ...] = ()
    unkeyed: str = ""


class AmbiguousCallError(RecoveryError):
    """A call that could be taken, after a crash, for another one. It was not made or recorded.

    ``tool``; ``first`` and ``second``: file and line of the functions that make the two calls;
    ``names``: the captured variables (or ``self``) in which they differ, none where the code does.
    """

    def __init__(self, run_id: str, step: int, what: Ambiguity, site: str) -> None:
        self.run_id, self.tool, self.names = run_id, what.tool, what.names
        self.first, self.second, self._unkeyed = what.first, what.second, what.unkeyed
        super().__init__(
            f"run {run_id!r}: a call in step {step} was not made, for after a crash it could be "
            f"taken for another one ({site}).\n{self._why()}\nIt was not recorded. "
            f"{self._ways_out()}"
        )

    def _why(self) -> str:
        if self._unkeyed:
            return (
                f"  {self.tool} ({self.second}) needs approval, and no recorded or shown value "
                f"distinguishes this object of class {self._unkeyed} from others."
            )
        if not self.first:
            where = f" ({self.second})" if self.second else ""
            return f"  It is the call of a lambda{where}, and a change of a lambda is not noticed."
        both = f"  first: {self.tool} ({self.first})\n  now:   {self.tool} ({self.second})"
        if not self.names:
            why = "Both have this name and equal arguments, and are different functions:"
        elif self.names == ("self",):
            why = "Both have equal arguments, and belong to different objects:"
        else:
            names = ", ".join(self.names)
            why = f"Both have equal arguments, and differ in what is not recorded: {names}."
        return f"  {why}\n{both}"

    def _ways_out(self) -> str:
        if not self.first and not self._unkeyed:
            return (
                "Use a function with a name (def); or name it, tool(name=...)(lambda ...); or give "
                "the call a call_id."
            )
        if self._unkeyed:  # the shown call, that a person decides about, has no name or id in it
            return (
                'Say what tells the objects apart: @tool(identity=["self.ATTRIBUTE", ...]); or an '
                "attribute recovery_key of the object. A call_id or a name does not."
            )
        if self.names == ("self",):
            return (
                'Say what tells the objects apart: @tool(identity=["self.ATTRIBUTE", ...]); or an '
                "attribute recovery_key of the object; or a name, tool(name=...)(object.method); "
                "or a call_id."
            )
        return (
            "Pass what they differ in as an argument; or give each a name, tool(name=...)(f); or "
            "each call a call_id."
        )


@dataclass(frozen=True, slots=True)
class AtStake:
    """What a user must know before accepting a divergence.

    ``effects``: recorded side effects that the code has not made again, and so many ``more``.
    ``renamed``: the recorded tool whose new name ``tool`` seems to be. ``same_code``: whether the
    agent's code is the one that made the record.
    """

    effects: tuple[str, ...] = ()
    more: int = 0
    renamed: str = ""
    tool: str = ""
    same_code: bool = False


class DivergenceError(RecoveryError):
    """The code does not do what the record says it did. Stopped before any new side effect.

    Nothing was executed or written since the difference. ``run_id``, ``step``, ``lsn`` (of the
    recorded side, 0 if none), ``recorded`` and ``found`` describe it; ``differences`` has a line
    for each difference. ``in_doubt`` is the LSN of the call that keeps an accepted divergence from
    continuing, 0 if none, and ``in_doubt_key`` its idempotency key.

    ``RunHandle.accept`` lets the code continue all the same. ``side_effects`` are the recorded ones
    that the new code may then execute again. ``renamed`` is the recorded tool that seems to have
    another name now. ``same_code``: whether the agent's code is still the one that made the record.
    """

    def __init__(
        self,
        run_id: str,
        step: int,
        sides: Sides,
        in_doubt: tuple[int, str] = (0, ""),
        at_stake: AtStake = AtStake(),
    ) -> None:
        self.run_id, self.step, self.lsn = run_id, step, sides.lsn
        self.in_doubt, self.in_doubt_key = in_doubt
        self.side_effects, self.renamed = at_stake.effects, at_stake.renamed
        self.same_code = at_stake.same_code
        self.recorded, self.found = sides.recorded, sides.found
        self.differences = sides.differences
        super().__init__(
            f"run {run_id!r} diverged in step {step}; no new side effect was started.\n"
            f"{_effects_at_stake(at_stake)}"
            f"  recorded{f' (LSN {sides.lsn})' if sides.lsn else ''}: {sides.recorded}\n"
            f"  now: {sides.found}\n"
            f"{''.join(f'  different: {line}' + chr(10) for line in sides.differences)}"
            f"{_likely(at_stake)}{self._choices()}"
        )

    def _choices(self) -> str:
        if self.in_doubt:
            return (
                f"The divergence was accepted, but the call at LSN {self.in_doubt} is in "
                "doubt, and would be forgotten. Resolve it first: "
                f"store.run({self.run_id!r}).resolve({self.in_doubt_key!r}, ...)."
            )
        return (
            f"{CHOICES}, and the code that made it can resume the run. Or choose:\n"
            f"  accept  store.run({self.run_id!r}).accept(why=...) and run it again: from\n"
            "          here on the history of the new code counts, and recorded calls that it\n"
            "          does not make again are not awaited any more\n"
            f"  fork    store.run({self.run_id!r}).fork('NEW_RUN_ID', at_step="
            f"{max(self.step - 1, 0)}) and run that with the new code\n"
            f"  abort   store.run({self.run_id!r}).cancel()"
        )


def _effects_at_stake(at_stake: AtStake) -> str:
    if not at_stake.effects:
        return "No recorded side effect is at stake: accepting repeats none.\n"
    more = f"    and {at_stake.more} more\n" if at_stake.more else ""
    lines = "".join(f"    {effect}\n" for effect in at_stake.effects)
    return (
        "The code has not made these recorded side effects again. If you accept, the run continues "
        "without them,\nand the new code may execute them again in another form:\n"
        f"{lines}{more}"
    )


def _likely(at_stake: AtStake) -> str:
    if at_stake.renamed:
        return (
            f"Was the tool renamed? @tool(name={at_stake.renamed!r}) on {at_stake.tool} keeps "
            "the recorded name, and the run continues without repeating the call.\n"
        )
    if at_stake.same_code:
        return (
            "The agent's code has not changed since. Something that is not recorded has made it "
            "diverge: a local variable that a checkpoint does not hold (keep it in run.state), "
            "the order of a set (of one from asyncio.wait: run.wait; of one that a tool returns: "
            "sorted; of coroutines in asyncio.as_completed: create_task), the agent's own "
            "asyncio.sleep or time-outs (run.sleep), or a clock, a random number, a file (run.now, "
            "run.random, a tool).\n"
        )
    return ""


class NotAwaitedError(RecoveryError):
    """The agent returned, and calls that it wrote without ``await`` were not made.

    ``places``: pairs of the called function, and the file and line. Nothing is lost: add ``await``
    there and resume the run.
    """

    def __init__(self, run_id: str, places: Sequence[tuple[str, str]]) -> None:
        self.run_id, self.places = run_id, tuple(places)
        lines = "".join(f"\n  {where}: await {what}" for what, where in self.places)
        super().__init__(
            f"the agent of run {run_id!r} returned, and calls were not made, because they were not "
            f"awaited:{lines}\nWithout `await` a call does nothing. All calls made are recorded: "
            "put the `await` there (or await the task), and run it again."
        )


class ParkedError(RecoveryError):
    """The run is parked and has lost nothing: run again, it resumes where it stopped.

    ``wake_at``: when it can continue by itself (seconds since 1970), None if something has to
    happen first. The subclasses say what it waits for.
    """

    wake_at: float | None = None


class WaitingError(ParkedError):
    """The run waits for a time, a signal or an approval; its process can exit.

    ``waits_for`` says for what, a line each.
    """

    def __init__(self, run_id: str, waits_for: Sequence[str], wake_at: float | None) -> None:
        self.run_id, self.waits_for, self.wake_at = run_id, tuple(waits_for), wake_at
        lines = "\n".join(f"  {what}" for what in self.waits_for)
        super().__init__(
            f"run {run_id!r} is parked until something happens outside:\n{lines}\nNothing is lost. "
            "Run it again then, or at any time; it resumes where it stopped."
        )


class StoppedError(ParkedError):
    """The run was asked to stop (a signal to the process, ``agent.stop()``) and did, between calls.

    No call is in doubt because of it. Run it again to resume it.
    """

    def __init__(self, run_id: str, why: str) -> None:
        self.run_id, self.why = run_id, why
        super().__init__(
            f"run {run_id!r} was stopped: {why}. Nothing is lost; run it again to resume it."
        )


class BudgetError(ParkedError):
    """The run has used up its budget, and is parked before the next step or call.

    Nothing was started beyond the limit and nothing is lost. ``used``: what it has used, a Usage.
    ``reached``: the limits, a line each. With a higher budget it resumes where it stopped.
    """

    def __init__(self, run_id: str, used: Any, reached: Sequence[str]) -> None:
        self.run_id, self.used, self.reached = run_id, used, tuple(reached)
        lines = "\n".join(f"  {line}" for line in self.reached)
        super().__init__(
            f"run {run_id!r} is parked, its budget is used up:\n{lines}\nUsed so far: {used}. "
            "Raise the limit, RecoverableAgent(..., budget=Budget(...)), and run it again: it "
            "resumes where it stopped."
        )


class InDoubtError(ParkedError):
    """Calls were started before a crash, and it is unknown whether they took effect.

    The run is parked: nothing is executed until each call in ``calls`` is resolved with
    ``RunHandle.resolve``; then run it again, and it resumes where it stopped.

    ``elsewhere``: the calls (LSNs) that a process that had the run before may still execute,
    with a line that names it and says until when, or that a thread here still executes. Such a call
    may take effect after you looked. ``wake_at``: when the run can continue without a person,
    because that time is over. ``store``: the option of the commands for its store.
    """

    def __init__(
        self,
        run_id: str,
        calls: Sequence[Any],
        elsewhere: Mapping[int, str] | None = None,
        wake_at: float | None = None,
        store: str = "",
    ) -> None:
        self.run_id, self.calls, self.wake_at = run_id, tuple(calls), wake_at
        self.elsewhere = dict(elsewhere or {})
        key = getattr(self.calls[0], "idempotency_key", "")[:16] if len(self.calls) == 1 else ""
        lines = "\n".join(f"  {call}{self._there(call.lsn)}" for call in self.calls)
        super().__init__(
            f"run {run_id!r} is parked: the outcome of {len(self.calls)} call(s) is unknown.\n"
            f"{lines}\nFind out whether it happened. Then resolve it, and run again:\n"
            f"  recovery resolve {run_id} {key or 'KEY'} --outcome JSON{store}\n"
            "or --retry, or --fail TEXT; or, in Python, "
            f"store.run({run_id!r}).resolve(KEY, Resolution.outcome(value) | Resolution.retry() | "
            "Resolution.fail(reason)). A tool can do this itself: @tool(reconcile=...) or "
            "@tool(after_crash=...)."
        )

    def _there(self, lsn: int) -> str:
        there = self.elsewhere.get(lsn)
        return "" if there is None else f"\n    {there}; end that process before you decide"


class UnrecordedResultError(RecoveryError):
    """A call has returned a value that cannot be recorded, so it has no outcome: the run stopped.

    The agent has not seen the value, and earlier records are untouched. A side effect is in doubt
    now, so its ``after_crash`` policy applies when the run is resumed; a repeatable call is made
    again. ``tool`` and ``lsn`` name the call (LSN 0: the agent function returned the value).
    ``path`` is the part of the value, ``reason`` why it is refused; ``shown`` is the value as text,
    up to 2,000 characters.
    """

    def __init__(
        self, run_id: str, call: tuple[str, int], refused: tuple[str, str], shown: str, then: str
    ) -> None:
        self.run_id, (self.tool, self.lsn), self.shown = run_id, call, shown
        self.path, self.reason = refused
        where = f"call {self.lsn}, {self.tool}," if self.lsn else "the agent function"
        super().__init__(
            f"run {run_id!r} has stopped: {where} returned a value that cannot be recorded.\n"
            f"  {self.path}: {self.reason}\n  returned: {shown}\n"
            "Every earlier record is kept, and the agent has not seen this value. "
            f"{then}"
        )


class ChildParkedError(ParkedError):
    """Child runs are parked, and so is the run that awaits them.

    ``children`` holds each child's run id and the error that stopped it (InDoubtError,
    StoppedError, an error of the child's agent, ...). All other calls of the run have ended. Do
    what the children wait for, and run the parent again: all of them resume where they stopped.
    """

    def __init__(
        self, run_id: str, children: Sequence[tuple[str, Exception]], wake_at: float | None = None
    ) -> None:
        self.run_id, self.children, self.wake_at = run_id, tuple(children), wake_at
        lines = "".join(
            f"\n  {child}: {type(error).__name__}: " + str(error).replace("\n", "\n    ")
            for child, error in self.children
        )
        super().__init__(
            f"run {run_id!r} is parked: {len(self.children)} of its child runs cannot continue."
            f"{lines}\nDo what they wait for, then run {run_id!r} again: "
            "it resumes where it stopped."
        )


_Cause = tuple[str, str, str]  # type, message, traceback


class RunFailedError(RecoveryError):
    """The run ended as failed, now or in an earlier process. ``__cause__`` is the error, if now.

    ``type_name``, ``message`` and ``traceback`` are those of the recorded cause; ``call`` is the
    LSN of the recorded tool failure that caused it, 0 if it was none. ``agent.retry(run_id)`` makes
    that call again and resumes the run; ``RunHandle.resolve`` gives it another outcome.
    ``options``: of the command for that. ``is_sealed``: the cause is encrypted in the log, and log
    lines do not have it.
    """

    def __init__(
        self, run_id: str, cause: _Cause, call: int, options: str = "", is_sealed: bool = False
    ) -> None:
        self.run_id, self.call, self.is_sealed = run_id, call, is_sealed
        self.type_name, self.message, self.traceback = cause
        hint = ""
        if call:
            what, first = "failed", "Mend the cause, then make this call again:"
            if self.type_name.rpartition(".")[2] == ApprovalDeniedError.__name__:
                what, first = "was not approved", "To ask for the approval again:"
            hint = (
                f"\nCall {call} {what}, and the agent did not catch that. Nothing is lost. {first}"
                f"\n  recovery retry {run_id} {options or '--agent MODULE:NAME'}\n"
                f"or, in Python, agent.retry({run_id!r}). Every call that returned is served from "
                "the log. To keep the failure, catch ToolError in the agent, which the call raises "
                f"when it is resolved as failed: `recovery show {run_id}` has the command."
            )
        super().__init__(f"run {run_id!r} failed: {self.type_name}: {quoted(self.message)}{hint}")


class RunUndoneError(RecoveryError):
    """The run was aborted and undone by a user (``RunHandle.undo``), by ``who`` and ``why``.

    Nothing was executed. Use another ``run_id`` for a new run.
    """

    def __init__(self, run_id: str, who: str, why: str) -> None:
        self.run_id, self.who, self.why = run_id, who, why
        said = "".join(f", {part}" for part in (f"by {who}" * bool(who), why) if part)
        super().__init__(
            f"run {run_id!r} was aborted and undone{quoted(said)}. Nothing was executed; begin "
            "again under another run_id."
        )


class UndoError(RecoveryError):
    """A compensation failed, and the undo stopped there. Undoing again continues with that one.

    ``done``, ``failed`` and ``left`` are LSNs of calls: the calls that are undone, the call whose
    compensation failed (``why`` says how), and the calls whose undo has not begun.
    """

    def __init__(
        self, run_id: str, done: Sequence[int], failed: int, why: str, left: Sequence[int]
    ) -> None:
        self.run_id, self.done, self.failed = run_id, tuple(done), failed
        self.why, self.left = why, tuple(left)
        # The arguments as given, so that the exception can be rebuilt from the record.
        super().__init__(run_id, list(done), failed, why, list(left))

    def __str__(self) -> str:
        return (
            f"run {self.run_id!r} is not wholly undone: the compensation of call {self.failed} "
            f"failed ({quoted(self.why)}).\n  undone: {_lsns(self.done)}\n  not yet begun: "
            f"{_lsns(self.left)}\nUndo it again, and it continues with call {self.failed}."
        )


def _by(who: str, why: str) -> str:
    """By whom, and why, if that is known."""
    return quoted(f" by {who}" * bool(who) + f": {why}" * bool(why))


def _lsns(lsns: Sequence[int]) -> str:
    shown = ", ".join(f"LSN {lsn}" for lsn in lsns[:20])
    return f"{shown} and {len(lsns) - 20} more" if len(lsns) > 20 else shown or "none"


class RunCancelledError(RecoveryError):
    """The run was cancelled by a user, now or earlier: it has ended, and cannot be resumed.

    ``who`` and ``why`` as they were given; ``in_doubt`` are the calls (LSNs) that may or may not
    have taken effect.
    """

    def __init__(self, run_id: str, who: str, why: str, in_doubt: Sequence[int]) -> None:
        self.run_id, self.who, self.why, self.in_doubt = run_id, who, why, tuple(in_doubt)
        doubt = ""
        if in_doubt:
            doubt = (
                f". In doubt when it ended, so find out whether they took effect: LSN "
                f"{', '.join(map(str, in_doubt))}"
            )
        super().__init__(f"run {run_id!r} was cancelled{_by(who, why)}{doubt}")


class DamagedRunError(RecoveryError):
    """Records that recovery needs are damaged, and no checkpoint replaces them.

    Nothing was executed: a lost record may be a call that was made. ``damage`` lists the losses.
    """

    def __init__(self, run_id: str, damage: Sequence[Damage]) -> None:
        self.run_id, self.damage = run_id, tuple(damage)
        lines = "\n".join(f"  {item}" for item in self.damage)
        super().__init__(
            f"run {run_id!r} cannot be resumed safely: records are damaged.\n{lines}\nNothing was "
            "executed or changed. Restore the segment from a copy. Or repair the log with "
            "`logdump repair`: the run can be resumed then, and calls that may have been lost "
            "are in doubt. Or fork it (RunHandle.fork) at a checkpoint before the damage."
        )


class NoSoundCheckpointError(RecoveryError):
    """Checkpoints of a run are there, and none of them verifies. Nothing was restored or changed.

    ``damage``: why not, of each.
    """

    def __init__(self, run_id: str, damage: Sequence[str]) -> None:
        self.run_id, self.damage = run_id, tuple(damage)
        lines = "\n".join(f"  {item}" for item in self.damage)
        super().__init__(
            f"run {run_id!r} has checkpoints, and none of them is sound:\n{lines}\nNothing was "
            "restored or changed: the run was begun, and what it did is not known. Put its log "
            "back from a copy (`logdump verify` says what is wrong with it). Or begin again, for "
            "what it did may be done twice then: under another run id, or after "
            f"delete_checkpoints({run_id!r})."
        )


class UnreadableValueError(RecoveryError):
    """A recorded value needs what this process does not have: a type that is not registered.

    Nothing is damaged, and nothing was executed. ``name``: the registered name of the type (""
    for a type of this library that needs a package, a time zone or another system). ``lsn``: the
    record (0: unknown); ``path``: where in it. Register the type, and run again.
    """

    def __init__(self, what: str, todo: str, name: str = "", path: str = "", lsn: int = 0) -> None:
        self.what, self.todo, self.name, self.path, self.lsn = what, todo, name, path, lsn
        places = [f"LSN {lsn}"] * bool(lsn) + [path.removeprefix(".")] * bool(path)
        at = f" ({', '.join(places)})" if places else ""
        super().__init__(
            f"a recorded value{at} cannot be read here: {what}. "
            f"{todo} Nothing is damaged, and nothing was executed."
        )

    def at(self, lsn: int) -> UnreadableValueError:
        """The same error, of a value in this record."""
        return UnreadableValueError(self.what, self.todo, self.name, self.path, lsn)


class SubjectKeysError(UnreadableValueError):
    """The document with the keys of subjects cannot be read. Nothing is lost by that alone.

    It is damaged, or encrypted with another key. Nothing was executed, and no key was made or
    destroyed. Put the document back, or give the key; then run again. ``lsn``: as of
    UnreadableValueError.
    """

    def __init__(self, what: str, todo: str) -> None:
        super().__init__(f"the document with the keys of subjects {what}", f"{todo}.")


class ForgottenError(RecoveryError):
    """The run needs a value of a subject that was forgotten, or was to record one.

    Nothing was executed or recorded since. ``run_id``: the run; ``what``: what it needs; ``keys``:
    the ids of its keys; one of them is destroyed. No process can read the value again.
    """

    def __init__(self, run_id: str, what: str, keys: Sequence[bytes] = ()) -> None:
        self.run_id, self.what, self.keys = run_id, what, tuple(keys)
        names = ", ".join(one.hex()[:8] for one in self.keys)
        super().__init__(
            f"run {run_id!r} needs {what}. It belongs to a subject that was forgotten: key {names} "
            "is destroyed. Nothing was executed since.\nTo end the run: `recovery cancel "
            f"{run_id}`. To let the agent continue with a Forgotten in place of what is gone: "
            'RecoverableAgent(..., on_forgotten="serve").'
        )


class NoAnswerError(Exception):
    """Raise it (or a subclass) from a tool that does not know whether its call took effect: the
    connection broke, or no answer came.

    A side effect is then in doubt, as after a time-out (``timeout_s``): its ``after_crash=`` or
    ``reconcile=`` decides at once. A call that is safe to repeat has failed with this error.
    """


class PermanentError(Exception):
    """Raise it (or a subclass) from an agent to end its run as failed, without recovery."""


class ToolError(Exception):
    """A tool failed with an exception that the log cannot rebuild by name.

    The same on the first execution and on replay. Builtin exceptions, and those that a tool
    declares with ``@tool(raises=[...])``, are raised as themselves instead. So are all whose type
    is loaded; where one is not, a ToolError with the same text replaces it.
    """

    def __init__(self, type_name: str, message: str, traceback: str) -> None:
        self.type_name, self.message, self.traceback = type_name, message, traceback
        super().__init__(f"{type_name}: {message}")


class ChildFailedError(ToolError):
    """A child run failed: the outcome of the call that awaited it, the same on replay.

    ``run_id`` is the child's; ``type_name``, ``message`` and ``traceback`` are those of its error;
    ``call`` is the LSN, in the child's log, of the recorded failure that caused it, 0 if none did.
    """

    def __init__(
        self, run_id: str, type_name: str, message: str, traceback: str = "", call: int = 0
    ) -> None:
        super().__init__(type_name, message, traceback)
        self.run_id, self.call = run_id, call
        # The arguments with which it is rebuilt from a record.
        self.args = (run_id, type_name, message, traceback, call)

    def __str__(self) -> str:
        return f"child run {self.run_id!r} failed: {self.type_name}: {quoted(self.message)}"


class ApprovalDeniedError(Exception):
    """A call was denied, or no decision came in time: it was not begun.

    The agent gets it from a tool with ``needs_approval``, the same on replay. ``tool``, ``who`` and
    ``why`` say it.
    """

    def __init__(self, tool: str, who: str, why: str) -> None:
        self.tool, self.who, self.why = tool, who, why
        super().__init__(tool, who, why)

    def __str__(self) -> str:
        return f"{self.tool} was denied{_by(self.who, self.why)}. It was not executed."


class Stop(BaseException):
    """Ends the agent function from inside a call; carries the error for the caller of the run.

    Not an Exception, so that an agent's ``except Exception`` does not swallow it.
    """

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error
