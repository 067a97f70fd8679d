"""A call that is made again, with calls inside it: what came back is served, the rest is made."""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter
from collections.abc import Callable, Generator
from dataclasses import replace
from typing import Any

import pytest

from eventlog.format.names import segment_name
from recovery import (
    ApprovalDeniedError,
    CheckpointStore,
    OutcomeUnknown,
    PermanentError,
    RecoveryError,
    Retry,
    Run,
    tool,
)
from recovery.engine.drive import drive, drive_async
from recovery.errors import DamagedRunError, RunFailedError
from recovery.journal.call_key import CallKey
from recovery.journal.events import (
    AttemptFailed,
    CallAbandoned,
    CallFailed,
    CallIntended,
    CallResolved,
    CallRetried,
    CallReturned,
    Event,
    RecordsLost,
    ValueRecorded,
)
from recovery.replay.matching import Replay
from recovery.testing import crash_everywhere
from tests.support.lives import (
    RUN,
    Died,
    Disk,
    after_death,
    disk_store,
    executed,
    recorded,
    run,
    run_sync,
)

pytestmark = pytest.mark.usefixtures("fresh", "clock", "in_order")
KINDS = pytest.mark.parametrize("kind", ["plain", "async"])
Body = Callable[[Any], Generator[Any, Any, Any]]
failing: Counter[str] = Counter()  # how often each is to fail yet; -1: the process dies in it


@pytest.fixture(autouse=True)
def _reset() -> None:
    failing.clear()


def made(what: str) -> str:
    executed[what] += 1
    if failing[what] < 0:
        failing[what] += 1
        raise Died
    if failing[what]:
        failing[what] -= 1
        raise ConnectionError(what)
    return f"{what} {executed[what]}"


send = tool(name="send")(made)
look = tool(name="look", after_crash="retry")(made)


def attempted(kind: str, body: Body, **options: Any) -> Any:
    """A tool that makes the calls which ``body`` yields, each a function and its arguments."""

    def plain(run: Any) -> Any:
        return drive(body(run), lambda one: one[0](*one[1:]))

    async def asynchronous(run: Any) -> Any:
        async def call(one: Any) -> Any:
            found = one[0](*one[1:])
            return await found if inspect.isawaitable(found) else found

        return await drive_async(body(run), call)

    given: Any = {"retry": Retry(3, 1.0), "after_crash": "retry", "name": "outer"} | options
    function = plain if kind == "plain" else asynchronous
    return tool(**given)(lambda: function(RUNS[-1]))


RUNS: list[Any] = []  # the present one


def lived(kind: str, body: Body, store: CheckpointStore, **options: Any) -> Any:
    """The result of an agent that does nothing but call the tool."""
    outer = attempted(kind, body, **options)

    def plain_agent(run: Any) -> Any:
        RUNS[:] = [run]
        return run.call(outer)

    async def agent(run: Any) -> Any:
        RUNS[:] = [run]
        return await run.call(outer)

    if kind == "plain":
        return run_sync(plain_agent, store)["result"]
    return run(agent, store)["result"]


def identities(store: CheckpointStore) -> list[CallKey]:
    found = [intent.identity for intent in recorded(store, CallIntended)]
    assert len(found) == len(set(found)), "two calls with one identity"
    return found


def once_more(kind: str, body: Body, store: CheckpointStore, **options: Any) -> Any:
    """Live, or live again after the process has died."""
    try:
        return lived(kind, body, store, **options)
    except Died:
        return lived(kind, body, after_death(store), **options)


# -- the rule


def order(run: Any) -> Generator[Any, Any, Any]:
    """Two that return, one that fails the first time, and one more."""
    found = yield look, "price"
    paid = yield send, "pay"
    shipped = yield send, "ship"
    if "dies" in failing and failing.pop("dies"):
        raise Died
    return [found, paid, shipped, (yield send, "mail")]


@KINDS
def test_what_returned_is_served_and_what_failed_is_made_again(kind: str) -> None:
    failing["ship"] = 1
    store = disk_store()
    assert lived(kind, order, store) == ["price 1", "pay 1", "ship 2", "mail 1"]
    assert executed == {"price": 1, "pay": 1, "ship": 2, "mail": 1}
    ship = next(one for one in recorded(store, CallRetried) if one.call != 3)
    assert ship.attempt == 2  # at the same call, under the same idempotency key
    assert len(identities(store)) == 5


@KINDS
def test_each_failure_is_made_again_until_the_attempts_are_used_up(kind: str) -> None:
    """Not served: an attempt is not to fail because an earlier one did, whatever crashes."""

    def body(run: Any) -> Generator[Any, Any, Any]:
        yield send, "first"
        if executed["second"] == 1 and "died" not in executed:
            executed["died"] += 1
            raise Died
        yield send, "second"

    failing["second"] = 9
    store = disk_store()
    with pytest.raises(RunFailedError, match="second"):
        once_more(kind, body, store)
    assert executed == {"first": 1, "second": 3, "died": 1}


@KINDS
def test_an_attempt_may_do_something_else_than_the_last_one(kind: str) -> None:
    def body(run: Any) -> Generator[Any, Any, Any]:
        n = 1 + len([one for one in executed if one.startswith("to ")])
        found = yield send, f"to {n}"
        if n < 3:
            raise ConnectionError
        if "died" not in executed:
            executed["died"] += 1
            raise Died
        return found

    def other(run: Any) -> Generator[Any, Any, Any]:
        return (yield send, "to 3")

    store = disk_store()
    with pytest.raises(Died):
        lived(kind, body, store)
    assert lived(kind, other, after_death(store)) == "to 3 1"
    assert executed == {"to 1": 1, "to 2": 1, "to 3": 1, "died": 1}


@KINDS
def test_one_of_equal_calls_that_succeeded_later_is_not_made_again(kind: str) -> None:
    """The first of them failed, and was made again by the body; then something else failed."""

    def body(run: Any) -> Generator[Any, Any, Any]:
        found = None
        for _ in range(3):
            try:
                found = yield send, "pay"
                break
            except ConnectionError:
                continue
        yield send, "ship"
        if "died" not in executed:
            executed["died"] += 1
            raise Died
        return [found, (yield send, "pay")]

    failing["pay"], failing["ship"] = 1, 2
    store = disk_store()
    assert once_more(kind, body, store) == ["pay 2", "pay 3"]
    assert executed == {"pay": 3, "ship": 3, "died": 1}


@KINDS
def test_times_and_random_numbers_come_back_too(kind: str) -> None:
    """What is bought under a new id is bought anew."""
    seen: list[Any] = []

    def body(run: Any) -> Generator[Any, Any, Any]:
        seen.append((run.uuid(), run.now()))
        yield send, seen[-1][0]
        yield send, "ship"
        if len(seen) == 2:
            raise Died
        return run.random()

    failing["ship"] = 1
    store = disk_store()
    assert isinstance(once_more(kind, body, store), float)
    assert len(seen) == 3
    assert len(set(seen)) == 1
    assert executed == {seen[0][0]: 1, "ship": 2}


@KINDS
def test_calls_inside_calls_inside_are_served_as_well(kind: str) -> None:
    inner = tool(name="inner", after_crash="retry", retry=Retry(2, 1.0))(
        lambda: [send("a"), send("b")]
    )

    def body(run: Any) -> Generator[Any, Any, Any]:
        found = yield (inner,)
        if "died" not in executed:
            executed["died"] += 1
            raise Died
        return found

    failing["b"] = 3  # twice in the first attempt, once in the second: a new round of attempts
    assert once_more(kind, body, disk_store()) == ["a 1", "b 4"]
    assert executed == {"a": 1, "b": 4, "died": 1}


# -- what is not made again


@KINDS
@pytest.mark.parametrize("error", [PermanentError, ApprovalDeniedError])
def test_a_failure_that_stays_is_served(kind: str, error: type[Exception]) -> None:
    store = disk_store()

    def refuse() -> None:
        executed["refuse"] += 1
        raise PermanentError("no")

    asks = tool(needs_approval=True, approval_timeout_s=5)(made)  # which nobody answers
    ending = (tool(refuse),) if error is PermanentError else (asks, "asked")

    def body(run: Any) -> Generator[Any, Any, Any]:
        executed["attempt"] += 1
        try:
            return (yield ending)
        except Exception as exc:
            raise ConnectionError(str(exc)) from None

    with pytest.raises(RunFailedError, match="no"):
        lived(kind, body, store)
    assert executed["attempt"] == 3
    assert executed["refuse"] == (error is PermanentError)
    assert len(recorded(store, CallIntended)) == 2


# -- in doubt


def test_a_call_in_doubt_inside_follows_its_own_policy() -> None:
    """Given up by an attempt that ran out of time."""

    async def agent(run: Run) -> Any:
        async def body() -> Any:
            async with asyncio.timeout(1 if failing["slow"] else None):
                return await run.call(slow)

        async def slow_() -> str:
            executed["slow"] += 1
            if failing["slow"]:
                failing["slow"] -= 1
                await asyncio.sleep(5)
            return "done"

        slow = tool(name="slow", after_crash="report")(slow_)
        return await run.call(tool(name="outer", after_crash="retry", retry=Retry(2, 1.0))(body))

    failing["slow"] = 1
    found = run(agent, disk_store())["result"]
    assert isinstance(found, OutcomeUnknown)
    assert executed == {"slow": 1}


def test_a_side_effect_in_doubt_is_not_forgotten() -> None:
    """The next attempt would do something else: it is stopped, and the call is shown in doubt."""
    found = replay(
        intent("outer", policy="retry"),
        intent("pay", 1),
        failed(1),
        CallRetried(1, 2),
    )
    assert [call.lsn for call in found.in_doubt() if call.intent.after_crash == "park"] == [2]
    found.match(intent("outer").identity)
    assert not found.exhausted
    assert found.match(intent("pay", 1).identity) is not None
    assert found.exhausted


# -- what is under way when an attempt fails


def waited(caplog: pytest.LogCaptureFixture) -> list[str]:
    """For how long it is said to have waited, and for what."""
    texts = [one.getMessage() for one in caplog.records if "has waited" in one.getMessage()]
    return [text.partition("has ended, and has waited ")[2] for text in texts]


def test_what_one_of_several_raised_past_gets_to_its_end(caplog: pytest.LogCaptureFixture) -> None:
    async def slow_(what: str) -> str:
        await asyncio.sleep(15)
        return made(what)

    slow = tool(name="slow")(slow_)

    async def body() -> Any:
        return await asyncio.gather(slow("a"), asyncio.to_thread(send, "b"))

    async def agent(run: Run) -> Any:
        return await run.call(tool(name="outer", retry=Retry(2, 1.0))(body))

    failing["b"] = 1
    store = disk_store()
    assert run(agent, store)["result"] == ["a 1", "b 2"]
    assert executed == {"a": 1, "b": 2}
    kinds = [type(event) for event in recorded(store)]
    assert kinds.index(CallReturned) < kinds.index(AttemptFailed)
    (said,) = waited(caplog)
    assert said.startswith("10 s for calls that it began: LSN 3: slow('a')")


def test_what_does_not_is_in_doubt_and_counts_no_more(caplog: pytest.LogCaptureFixture) -> None:
    left: list[Any] = []

    async def slow_(what: str) -> str:
        executed[what] += 1
        await asyncio.sleep(500 if executed[what] == 1 else 0)
        return f"{what} {executed[what]}"

    slow = tool(name="slow", after_crash="retry")(slow_)

    async def body() -> Any:
        async def late() -> None:
            left.append(asyncio.current_task())
            await slow("a")

        task = asyncio.create_task(late())
        await asyncio.sleep(0.1)
        if len(left) == 1:
            raise ConnectionError
        await task
        with pytest.raises(RecoveryError, match="makes the call around this one again"):
            await left[0]
        return await slow("b")

    async def agent(run: Run) -> Any:
        return await run.call(tool(name="outer", retry=Retry(2, 1.0))(body))

    store = disk_store()
    assert run(agent, store)["result"] == "b 1"
    assert [one.value for one in recorded(store, CallReturned)] == ["a 2", "b 1", "b 1"]
    began = "for calls that it began: a repeatable call"
    assert waited(caplog) == [f"10 s {began}", f"20 s {began}"]


@KINDS
def test_an_attempt_whose_calls_have_ended_waits_for_nothing(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("recovery.calls.attempt_end.DRAIN_NAP_S", 1e6)

    def body(run: Any) -> Generator[Any, Any, Any]:
        return (yield send, "a"), (yield send, "b")

    failing["b"] = 1
    assert lived(kind, body, disk_store()) == ("a 1", "b 2")


def test_damage_inside_an_attempt_that_failed_stops_the_run() -> None:
    """Its calls cannot be served to the next attempt."""
    store = disk_store()

    def body() -> None:
        send("marked")
        assert isinstance(store.backend, Disk)
        content = store.backend.disk.directories[f"home/{RUN}"][segment_name(1)].content
        content[bytes(content).index(b"marked")] ^= 1
        raise ConnectionError

    outer = tool(name="outer", after_crash="retry", retry=Retry(2, 0.0))(body)
    with pytest.raises(DamagedRunError, match="LSN 3"):
        run_sync(lambda run: run.call(outer), store)
    assert executed == {"marked": 1}


# -- children, and people


@pytest.mark.parametrize("what", ["drew", "called"])
def test_nobody_waits_for_what_a_failed_attempt_did_and_the_next_one_does_not(what: str) -> None:
    seen: list[str] = []

    async def agent(run: Run) -> None:
        @tool(retry=Retry(3, delay_s=0, jitter=0), after_crash="retry")
        async def order() -> None:
            if not executed["tried"]:
                executed["tried"] += 1
                if what == "drew":
                    run.random()
                else:
                    await run.call(look, "the price")
                raise OSError("not yet")
            await asyncio.sleep(30)
            seen.append("order")

        async def beside() -> None:
            await asyncio.sleep(1)
            await run.call(send, "a letter")
            seen.append("a letter")
            crashed.append(after_death(store))

        await asyncio.gather(run.call(order), beside())

    crashed: list[CheckpointStore] = []
    store = disk_store()
    run(agent, store)
    run(agent, crashed[0])
    assert seen == ["a letter", "order"] * 2


def test_nobody_waits_for_what_an_attempt_did_that_a_crash_cut_short_and_no_later_one_does() -> (
    None
):
    seen: list[str] = []

    async def agent(run: Run) -> None:
        @tool(retry=Retry(3, delay_s=0, jitter=0), after_crash="retry")
        async def order() -> None:
            executed["attempts"] += 1
            await run.call(send, "first")
            if executed["attempts"] == 2:
                raise OSError("it is made once more")
            if executed["attempts"] == 1:
                await run.call(send, "second")
            await asyncio.sleep(30)
            seen.append("order")

        async def beside() -> None:
            await asyncio.sleep(1)
            await run.call(send, "a letter")
            seen.append("a letter")
            crashed.append(after_death(store))

        await asyncio.gather(run.call(order), beside())

    crashed: list[CheckpointStore] = []
    store = disk_store()
    run(agent, store)
    run(agent, crashed[0])
    assert seen == ["a letter", "order"] * 2
    assert executed == {"first": 1, "second": 1, "a letter": 1, "attempts": 3}


@pytest.mark.parametrize("edited", [False, True])
@pytest.mark.parametrize("dies", [0, 1, 2])
def test_an_edited_signature_repeats_no_payment_in_later_attempts(edited: bool, dies: int) -> None:
    """The edited tool makes the same payment in other words: a parameter has a default now."""

    @tool(name="pay")
    def before(who: str, note: str) -> str:
        executed[who, note] += 1
        return "receipt"

    @tool(name="pay")
    def after(who: str, note: str = "rent", *, currency: str = "EUR") -> str:
        executed[who, note] += 1
        return "receipt"

    attempts = 0

    @tool(retry=Retry(5, delay_s=0, jitter=0), after_crash="retry", identity=())
    def order(new: bool) -> str:
        nonlocal attempts
        attempts += 1
        receipts = (
            after("ann") + after("bob", note="food")
            if new
            else (before("ann", "rent") + before("bob", "food"))
        )
        if attempts == dies:
            raise Died
        if attempts < 4:
            raise OSError("not yet")
        return receipts

    def agent(new: bool) -> Any:
        return lambda run: run.call(order, new)

    store = disk_store()
    if dies:
        with pytest.raises(Died):
            run_sync(agent(False), store)
        store = after_death(store)
    assert run_sync(agent(edited), store)["result"] == "receiptreceipt"
    assert executed == {("ann", "rent"): 1, ("bob", "food"): 1}


def test_a_child_that_failed_inside_goes_on() -> None:
    async def sub(run: Run) -> str:
        return str(await run.call(send, "a")) + str(await run.call(send, run.task))

    async def agent(run: Run) -> Any:
        async def body() -> Any:
            return await run.child(sub, "b")

        return await run.call(tool(name="outer", after_crash="retry", retry=Retry(2, 1.0))(body))

    failing["b"] = 1
    assert run(agent, disk_store())["result"] == "a 1b 2"
    assert executed == {"a": 1, "b": 2}


def test_a_child_that_an_attempt_gave_up_has_ended_for_good() -> None:
    async def sub(run: Run) -> None:
        await run.sleep(500)

    async def agent(run: Run) -> Any:
        async def body() -> Any:
            executed["attempt"] += 1
            async with asyncio.timeout(5):
                return await run.child(sub, "b")

        return await run.call(tool(name="outer", after_crash="retry", retry=Retry(3, 1.0))(body))

    with pytest.raises(RunFailedError, match="RunCancelledError"):
        run(agent, disk_store())
    assert executed == {"attempt": 3}


# -- the record alone


def intent(what: str, inside: int = 0, occurrence: int = 1, policy: str = "park") -> CallIntended:
    scope = f"call {inside}" if inside else "1"
    return CallIntended(scope, what, "", b"d", occurrence, policy)


def returned(call: int) -> CallReturned:
    return CallReturned(call, "paid")


def failed(call: int) -> AttemptFailed:
    return AttemptFailed(call, 1, "E", "m", 0.0)


def replay(*events: Event) -> Replay:
    return Replay.of((lsn, lsn, event) for lsn, event in enumerate(events, 1))


def test_an_equal_wait_of_this_attempt_is_not_taken_for_one_of_the_last() -> None:
    def wait(occurrence: int, timeout: float | None) -> CallIntended:
        args = [["a"], {"timeout": timeout}]
        return replace(intent("wait_for", 1, occurrence, "wait"), args=args)

    found = replay(
        intent("outer"),
        wait(1, None),
        CallReturned(2, "first"),
        failed(1),
        CallRetried(1, 2),
        wait(2, 5.0),
        CallReturned(6, "second"),
    )
    found.distinguish_waits(wait(1, 5.0).identity, timed=True)
    call = found.match(wait(1, 5.0).identity)
    assert call is not None and call.value == "first"


def test_what_is_lost_inside_an_attempt_may_have_been_about_any_call_of_it() -> None:
    found = replay(intent("outer"))
    found.match(intent("outer").identity)
    calls: list[Event] = [intent("pay", 1), returned(2), intent("ship", 1), failed(4)]
    events = [intent("outer"), *calls, RecordsLost(7)]
    found.end_attempt(1, [(lsn, lsn, event) for lsn, event in enumerate(events, 1)])
    pay, ship = (found.match(intent(what, 1).identity) for what in ("pay", "ship"))
    assert pay is not None and ship is not None
    assert (pay.uncertain, ship.uncertain) == (False, True)


def test_logs_of_before_are_read_as_they_were_written() -> None:
    """Their second attempt has calls of the same identity: it goes on with those."""
    found = replay(
        intent("outer"),
        intent("pay", 1),
        CallReturned(2, "first"),
        intent("ship", 1),
        CallFailed(4, "E", "m"),
        failed(1),
        CallRetried(1, 2),
        intent("pay", 1),
        CallReturned(8, "second"),
    )
    found.match(intent("outer").identity)
    call = found.match(found.earlier.renumbered(intent("pay", 1).identity))
    assert call is not None
    assert (call.lsn, call.from_past_attempt) == (8, False)


def test_of_equal_calls_in_two_attempts_the_one_that_returned_is_served() -> None:
    found = replay(
        intent("outer"),
        intent("pay", 1),
        CallReturned(2, "first"),
        failed(1),
        CallRetried(1, 2),
        intent("pay", 1),
        CallFailed(6, "E", "m"),
        failed(1),
        CallRetried(1, 3),
    )
    call = found.match(found.earlier.renumbered(intent("pay", 1).identity))
    assert call is not None
    assert (call.lsn, call.has_outcome) == (2, True)


def test_of_equal_calls_those_with_an_outcome_are_served_first_and_each_once() -> None:
    """The one that is in doubt comes behind them; and later ones are new."""
    found = replay(
        intent("outer"),
        intent("pay", 1, 1),
        *(event for lsn in (3, 5) for event in (intent("pay", 1, lsn // 2 + 1), returned(lsn))),
        failed(1),
        CallRetried(1, 2),
    )
    asked = [found.earlier.renumbered(intent("pay", 1, n).identity) for n in (1, 2, 3, 4)]
    assert [key.occurrence for key in asked] == [2, 3, 1, 4]
    served = [found.match(key) for key in asked]
    assert [call and call.lsn for call in served] == [3, 5, 2, None]


def test_what_the_present_attempt_has_recorded_is_replayed_strictly() -> None:
    found = replay(
        intent("outer"),
        intent("pay", 1),
        CallFailed(2, "E", "m"),
        ValueRecorded("call 1", "now", 1, 5),
        failed(1),
        CallRetried(1, 2),
        CallResolved(2, "retry"),
        CallRetried(2, 2),
        CallFailed(2, "E", "again"),
        intent("ship", 1),
        CallReturned(10, "x"),
    )
    found.match(intent("outer").identity)
    assert {call.lsn for call in found.unmatched()} == {2, 10}
    pay, ship = (found.match(intent(what, 1).identity) for what in ("pay", "ship"))
    assert pay is not None
    assert ship is not None
    assert (pay.has_outcome, ship.has_outcome) == (
        True,
        True,
    )  # its failure too: it is this attempt's
    value = found.take_value("call 1", "now", 1)
    assert value is not None
    assert value.value == 5


def test_what_was_given_up_in_an_attempt_is_no_part_of_the_next() -> None:
    found = replay(
        intent("outer"),
        intent("a", 1, policy="report"),
        CallAbandoned(2, 1, "cancelled", went_on=True, begun=True),
        failed(1),
    )
    found.match(intent("outer").identity)
    assert found.exhausted
    assert found.in_doubt() == []


# -- killed everywhere


def sweep(kind: str, points: Any) -> Any:
    def setup() -> None:
        executed.clear()
        failing.clear()
        failing.update({"pay": 1, "ship": 2})

    def body(run: Any) -> Generator[Any, Any, Any]:
        run.uuid()
        found = [(yield look, "price")[:5]]
        try:
            found.append((yield send, "pay")[:3])
        except ConnectionError:
            found.append((yield send, "pay")[:3])
        found.append((yield send, "ship")[:4])
        return [*found, (yield send, "mail")[:4]]

    outer = attempted(kind, body)

    def plain_agent(run: Any) -> Any:
        RUNS[:] = [run]
        return run.call(outer)

    async def agent(run: Any) -> Any:
        RUNS[:] = [run]
        return await run.call(outer)

    given: Any = plain_agent if kind == "plain" else agent
    return crash_everywhere(given, "task", setup=setup, points=points, timeout_s=20)


@KINDS
@pytest.mark.parametrize("points", [12, pytest.param("all", marks=pytest.mark.crash)])
def test_killed_at_any_point_it_comes_to_the_same(kind: str, points: Any) -> None:
    assert sweep(kind, points).ok
