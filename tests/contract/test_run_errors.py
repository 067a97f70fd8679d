"""What stops a run is in its log: an error of the agent's own code, how often, and whether it is
past."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from recovery import CheckpointStore, RecoverableAgent, RecoveryError, Run, tool
from recovery.control.send import signal
from recovery.errors import RunFailedError, WaitingError
from recovery.inspect.follow import events
from recovery.inspect.status import status
from recovery.ops.fork import fork
from recovery.reports import RunError, RunEvent
from recovery.testing import crash_everywhere
from tests.cli.harness import call
from tests.support.lives import RUN, Died, after_death, disk_store
from tests.support.scale import scaled

done: Counter[Any] = Counter()


@tool
def work(step: int) -> int:
    done[step] += 1
    return step


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    done.clear()
    monkeypatch.setattr("recovery.agent.agent_errors.BACKOFF_S", 0.0)
    yield


@pytest.fixture(params=["memory", "file"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(tmp_path) if request.param == "file" else CheckpointStore()


def agent_that(raises: Callable[[Any, int], None], steps: int = 6) -> Callable[[Any], Any]:
    def agent(run: Any) -> str:
        for step in run.steps():
            work(step)
            raises(run, step)
            if step == steps:
                return "done"
        raise AssertionError

    return agent


def run(agent: Callable[..., Any], store: CheckpointStore, **options: Any) -> Any:
    return RecoverableAgent(agent, store, **options).run_with_recovery_sync("task", RUN)


def error_of(store: CheckpointStore) -> RunError:
    found = status(store, RUN).error
    assert found is not None
    return found


OF_THE_CODE: dict[str, Callable[[], Any]] = {
    "TypeError": lambda: len(5),  # type: ignore[arg-type]
    "AttributeError": lambda: "".nothing,  # type: ignore[attr-defined]
    "NameError": lambda: nothing,  # type: ignore[name-defined]  # noqa: F821
    "ModuleNotFoundError": lambda: __import__("no_such"),
    "AssertionError": lambda: raising(AssertionError()),
    "KeyError": lambda: dict[str, int]()["x"],
    "IndexError": lambda: "".split(maxsplit=1)[0],
    "ZeroDivisionError": lambda: 1 // 0,
    "NotImplementedError": lambda: raising(NotImplementedError()),
    "RefusedValueError": lambda: work(object()),  # type: ignore[arg-type]
    "ExceptionGroup": lambda: raising(ExceptionGroup("g", [OSError(), TypeError()])),
}


def raising(exc: Exception) -> Any:
    raise exc


@pytest.mark.parametrize("name", OF_THE_CODE)
def test_an_error_of_the_code_is_raised_at_once_and_is_in_the_log(
    name: str, store: CheckpointStore
) -> None:
    def agent(run: Any) -> None:
        for step in run.steps():
            work(step)
            if step == 5:
                OF_THE_CODE[name]()

    for times in (1, 2, 3):
        with pytest.raises(Exception) as raised:
            run(agent, store)
        assert type(raised.value).__name__ == name
        error = error_of(store)
        assert error.type.rpartition(".")[2] == name
        assert (error.step, error.in_a_row, error.total) == (5, times, times)
        assert not error.is_past and not error.goes_on
        assert __file__ in error.place
        assert f'File "{__file__}"' in error.traceback.splitlines()[1]  # nothing of the library
    assert done == {1: 1, 2: 1, 3: 1, 4: 1, 5: 1}
    found = status(store, RUN)
    assert found.state == "interrupted"
    assert found.why.startswith(name) or name in found.why
    assert "3 times in a row" in found.why


def stops_for_changed_code(store: CheckpointStore) -> None:
    with pytest.raises(Died):
        run(agent_that(lambda run, step: died() if step == 2 else None), store)

    @tool(name="work")
    def other(step: int, unit: str) -> int:
        return step

    run(lambda run: [other(step, "EUR") for step in run.steps()], store)


def stops_for_two_lambdas(store: CheckpointStore) -> None:
    def fetch(run: Any, url: str) -> str:
        return str(run.call(tool(name="fetch")(lambda: url)))

    run(lambda run: [fetch(run, url) for url in "ab"], store)


def died() -> None:
    raise Died


@pytest.mark.parametrize(
    "stops, name",
    [(stops_for_changed_code, "Divergence"), (stops_for_two_lambdas, "AmbiguousCall")],
)
def test_an_error_with_which_the_library_stops_a_run_is_in_the_log(
    stops: Callable[[CheckpointStore], None], name: str, store: CheckpointStore
) -> None:
    with pytest.raises(RecoveryError) as stopped:
        stops(store)
    error = error_of(store)
    assert type(stopped.value).__name__ == f"{name}Error"
    assert error.type.endswith(f"{name}Error") and not error.goes_on


@pytest.mark.parametrize("is_async", [False, True])
def test_an_error_that_can_get_better_is_recovered_from_and_counted(
    is_async: bool, store: CheckpointStore
) -> None:
    told: list[RunEvent] = []
    left = [2]

    def shaky(run: Any, step: int) -> None:
        if step == 5 and left[0]:
            left[0] -= 1
            raise OSError("the network is down")

    async def async_agent(run: Any) -> str:
        async for step in run.steps():
            work(step)
            shaky(run, step)
            if step == 6:
                return "done"
        raise AssertionError

    agent = async_agent if is_async else agent_that(shaky)
    assert run(agent, store, on_event=told.append)["result"] == "done"
    error = error_of(store)
    assert (error.type, error.message) == ("builtins.OSError", "the network is down")
    assert (error.in_a_row, error.total, error.goes_on, error.is_past) == (1, 2, True, True)
    raised = [one for one in told if one.kind == "agent_raised"]
    assert [(one.step, one.error) for one in raised] == [(5, "OSError: the network is down")] * 2
    read = [one for one in events(store, RUN, until="now") if one.kind == "agent_raised"]
    assert [str(one) for one in read] == [str(one) for one in raised]
    assert "the agent raised OSError: the network is down at " in str(read[0])


def test_a_crash_loop_looks_like_one_over_checkpoints_and_until_it_gets_further(
    store: CheckpointStore,
) -> None:
    """In a row: at one step and place. What was before a checkpoint is known behind it."""
    broken = [3, 5]

    def raises(run: Any, step: int) -> None:
        if step in broken:
            raise RuntimeError("loop")

    agent = agent_that(raises)
    for _ in range(2):
        with pytest.raises(RuntimeError):
            run(agent, store, checkpoint_every_n=1, max_recoveries=3)
    assert (error_of(store).step, error_of(store).in_a_row) == (3, 2)
    broken.remove(3)
    with pytest.raises(RuntimeError):
        run(agent, store, checkpoint_every_n=1, max_recoveries=3)
    assert (error_of(store).step, error_of(store).in_a_row, error_of(store).total) == (5, 1, 12)
    broken.clear()
    assert run(agent, store, checkpoint_every_n=1)["result"] == "done"
    error = error_of(store)
    assert (error.total, error.is_past, error.message) == (12, True, "loop")
    assert status(store, RUN).why == ""


def test_an_error_is_past_once_the_run_has_got_further(store: CheckpointStore) -> None:
    def raises(run: Any, step: int) -> None:
        if step == 3 and run.recovery_count == 0:
            raise OSError("once")
        if step == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(agent_that(raises), store, checkpoint_every_n=9)
    assert error_of(store).is_past
    assert (status(store, RUN).state, status(store, RUN).why) == ("interrupted", "")


def test_an_error_is_past_once_the_run_has_recorded_something_after_it(
    store: CheckpointStore,
) -> None:
    broken = [True]

    @tool(needs_approval=lambda call: dict[str, bool]()["amount"] if broken else True)
    def charge(amount: int) -> int:
        return amount

    def agent(run: Any) -> Any:
        return charge(5)

    for _ in range(3):
        with pytest.raises(KeyError):
            run(agent, store)
    assert status(store, RUN).quarantined
    broken.clear()
    with pytest.raises(WaitingError):
        run(agent, store, park_after_s=0)
    (call,) = status(store, RUN).calls
    assert error_of(store).is_past
    assert status(store, RUN).needs_person == f"asks for approval: {call.name}"
    store.run(RUN).approve(call)
    assert status(store, RUN).due and not status(store, RUN).quarantined
    assert run(agent, store)["result"] == 5


def test_a_failure_of_a_tool_is_no_error_of_the_agent(store: CheckpointStore) -> None:
    @tool
    def failing() -> None:
        raise ValueError("no")

    def agent(run: Any) -> Any:
        try:
            failing()
        except ValueError:
            return failing()

    with pytest.raises(RunFailedError):
        run(agent, store)
    assert status(store, RUN).error is None


def test_secrets_are_not_in_it_and_sizes_are_bounded(tmp_path: Path) -> None:
    @tool(redact=["password"])
    def login(password: str) -> str:
        return "in"

    def agent(run: Any) -> Any:
        login("hunter22")
        raise TypeError(f"hunter22 {'x' * 200_000}")

    with pytest.raises(TypeError):
        run(agent, CheckpointStore(tmp_path))
    error = error_of(CheckpointStore(tmp_path))
    assert error.message.startswith("[redacted] xxx")
    assert len(error.message) <= 16 << 10
    assert len(error.traceback) <= 16 << 10
    log = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert b"hunter22" not in log
    assert len(log) < 60_000


@pytest.mark.parametrize("is_async", [False, True])
def test_it_changes_nothing_about_a_replay_at_any_crash_point(is_async: bool) -> None:
    def shaky(run: Any, step: int) -> None:
        if step in (2, 4) and run.recovery_count in (0, 1):
            raise OSError("once, or in each of two lives")

    async def async_agent(run: Any) -> str:
        async for step in run.steps():
            work(step)
            shaky(run, step)
            if step == 4:
                return "done"
        raise AssertionError

    agent = async_agent if is_async else agent_that(shaky, 4)
    report = crash_everywhere(
        lambda: RecoverableAgent(agent, CheckpointStore(), checkpoint_every_n=2),
        "task",
        points=scaled(10, 60),
    )
    assert report.ok, report


def test_a_fork_does_not_have_the_errors_of_its_origin(store: CheckpointStore) -> None:
    def raises(run: Any, step: int) -> None:
        if step == 3 and run.run_id == RUN:
            raise TypeError("here")

    agent = agent_that(raises)
    with pytest.raises(TypeError):
        run(agent, store, checkpoint_every_n=1)
    fork(store, RUN, "other")  # with all that is recorded
    RecoverableAgent(agent, store).run_with_recovery_sync("task", "other")
    assert [one for one in events(store, "other", until="now") if one.kind == "agent_raised"] == []


@pytest.mark.parametrize("redact", [False, True])
def test_the_commands_show_it(redact: bool, tmp_path: Path) -> None:
    def raises(run: Any, step: int) -> None:
        if step == 2:
            raise TypeError("a secret of the agent")

    agent = agent_that(raises)
    for _ in range(3):
        with pytest.raises(TypeError):
            run(agent, CheckpointStore(tmp_path))
    hide = ["--redact", "*"] if redact else []

    def shell(command: str, *args: str) -> str:
        found = call(command, *args, cwd=tmp_path)
        assert found.code == 0, found.err
        return " ".join(found.out.split())

    shown = shell("recovery", "show", RUN, "--store", str(tmp_path), *hide)
    assert "raised to the caller; 3 errors in all" in shown
    told = json.loads(shell("recovery", "show", RUN, "--store", str(tmp_path), "--json", *hide))[
        "error"
    ]
    assert (told["type"], told["in_a_row"], told["step"]) == ("builtins.TypeError", 3, 2)
    listed = shell("recovery", "runs", "--store", str(tmp_path))
    assert "TypeError 3x" in listed
    log = str(tmp_path / RUN)
    stood = shell("logdump", "status", *hide, log)
    dumped = shell("logdump", "dump", *hide, log)
    stats = shell("logdump", "stats", log)
    assert "3x by the agent's own code; the last: TypeError in step 2" in stats
    assert json.loads(shell("logdump", "stats", "--json", log).partition("\n")[0])
    assert "agent_raised" in dumped
    shell("logdump", "timeline", *hide, "--output", str(tmp_path / "t.html"), log)
    page = (tmp_path / "t.html").read_text()
    assert "agent_raised" in page
    for text in (shown, stood, page):
        assert ("a secret of the agent" in text) is not redact


def test_a_process_that_dies_before_the_record_loses_only_that(store: CheckpointStore) -> None:
    disk = disk_store()

    def agent(run: Any) -> Any:
        work(1)
        if run.recovery_count == 0:
            raise Died
        return "done"

    with pytest.raises(Died):
        run(agent, disk)
    again = after_death(disk)
    assert status(again, RUN).error is None
    assert run(agent, again)["result"] == "done"


@pytest.mark.parametrize("how", ["wait", "in a tool", "in a tool that catches"])
def test_what_a_failed_agent_left_waiting_has_no_outcome(
    how: str, store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("recovery.agent.recoverable.DRAIN_S", 0.05)
    failed: list[asyncio.Future[Any]] = []
    has_failed = asyncio.Event()

    async def agent(run: Run) -> Any:
        @tool(after_crash="retry")
        async def ask() -> Any:
            try:
                return await run.wait_for("go")
            except Exception as exc:
                if how == "in a tool":
                    raise
                return f"caught {exc!r}"

        waiting = asyncio.ensure_future(run.wait_for("go") if how == "wait" else run.call(ask))
        await asyncio.sleep(0.01)
        if not failed:
            failed.append(waiting)
            has_failed.set()
            raise RuntimeError("once")
        return await waiting

    async def lived() -> Any:
        running = asyncio.ensure_future(RecoverableAgent(agent, store).run_with_recovery("t", RUN))
        await has_failed.wait()
        await asyncio.wait(failed, timeout=10)
        assert isinstance(failed[0].exception(), RecoveryError)
        signal(store, RUN, "go", "went")
        return (await running)["result"]

    assert asyncio.run(lived()) == "went"
    assert not [one for one in events(store, RUN, until="now") if one.kind == "failure"]
