"""Arguments that are kept out of the log: the call is known again, and the secret is nowhere."""

from __future__ import annotations

import base64
import json
import logging
import traceback
import urllib.parse
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path, PurePosixPath
from typing import Any
from uuid import UUID

import pytest

import recovery
from eventlog import EventLog, RefusedValueError
from eventlog.dump import dump
from recovery import (
    Call,
    CheckpointStore,
    InDoubtError,
    Redacted,
    Resolution,
    Retry,
    Run,
    SyncRun,
    ToolError,
    current_call,
    tool,
)
from recovery.control.resolve import resolve
from recovery.declare.spec import spec_of
from recovery.engine.unrecordable_results import SHOWN_SIZE
from recovery.errors import DivergenceError, RunFailedError, UnrecordedResultError
from recovery.journal.redaction import Secrets
from recovery.values.pack import pack
from tests.support.lives import Died, run

SECRET = "hunter2\n'quoted' \u017c\u00f3\u0142w"
TOKEN = b"\x00sk-token\xff"
FORMS = [
    SECRET.encode(),
    repr(SECRET)[1:-1].encode(),
    b"hunter2",
    base64.b64encode(SECRET.encode()),
    TOKEN,
    b"sk-token",
    base64.b64encode(TOKEN),
]


class Everything(logging.Handler):
    """All that is logged, with tracebacks, and the texts of errors."""

    def __init__(self) -> None:
        super().__init__()
        self.text = ""
        self.setFormatter(logging.Formatter("%(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        self.text += self.format(record) + "\n"

    def error(self, exc: BaseException) -> None:
        self.text += f"{exc}\n{exc!r}\n{getattr(exc, '__notes__', '')}\n"


@pytest.fixture
def told() -> Any:
    handler = Everything()
    logger = logging.getLogger()
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    yield handler
    logger.removeHandler(handler)
    logger.setLevel(level)


def check_nowhere(path: Path, told: Everything) -> None:
    files = [file for file in path.rglob("*") if file.is_file()]
    assert any(file.stat().st_size > 500 for file in files)
    for form in FORMS:
        for file in files:
            assert form not in file.read_bytes(), (form, file)
        assert form.decode("latin-1") not in told.text.encode().decode("latin-1"), form


def shown(path: Path) -> list[dict[str, Any]]:
    with EventLog.read(path / "run") as reader:
        return list(dump(reader))


class Vault:
    """Tools with secrets, and what they were called with."""

    def __init__(self) -> None:
        self.got: list[Any] = []
        self.seen: list[Any] = []
        vault = self

        @tool(redact=["password", "token"])
        def login(user: str, password: Any, *, token: Any = None) -> str:
            vault.got.append((user, password, token))
            vault.seen.append(current_call())
            return f"session of {user}"

        @tool(redact=["password"])
        def rejects(password: str) -> None:
            vault.got.append(password)
            raise ValueError(f"bad password {password}", password)

        @tool(redact=["secrets"], retry=Retry(attempts=2, delay_s=0))
        async def leaks(secrets: dict[str, Any]) -> None:
            vault.got.append(secrets)
            error = LookupError(secrets, secrets["token"])
            raise KeyError(secrets["password"]) from error

        @tool
        def innocent() -> None:
            raise OSError(5, "cannot open", SECRET)

        @tool(redact=["password"])
        def dies(password: str) -> None:
            raise Died

        self.login, self.rejects, self.leaks, self.innocent, self.dies = (
            login,
            rejects,
            leaks,
            innocent,
            dies,
        )


def catching(told: Everything, seen: list[Any], exc: Exception) -> None:
    told.error(exc)
    if exc.__cause__ is not None:
        told.error(exc.__cause__)
    seen.append((type(exc).__name__, str(exc), exc))


def many_outcomes(vault: Vault, told: Everything, seen: list[Any]) -> Any:
    """Success, failures of all kinds, from different places."""

    async def agent(run: Run) -> Any:
        seen.clear()
        secrets = {"password": SECRET, "token": TOKEN, "all": [(SECRET,), {SECRET}]}
        async for step in run.steps():
            seen.append(await run.call(vault.login, "ada", SECRET, token=TOKEN))
            seen.append(await run.call(vault.login, user="bob", password=[SECRET]))
            for function, args in (
                (vault.rejects, (SECRET,)),
                (vault.leaks, (secrets,)),
                (vault.innocent, ()),
                (vault.login, (SECRET, SECRET, SECRET, SECRET)),
                (vault.login, ("eve", object())),
            ):
                try:
                    await run.call(function, *args)
                except Exception as exc:
                    catching(told, seen, exc)
            if step == 2 and run.recovery_count == 0:
                raise RuntimeError(f"the agent itself: {SECRET} {TOKEN!r}")
            if step == 3:
                return "done"

    return agent


def test_a_secret_is_in_no_file_and_in_no_text(tmp_path: Path, told: Everything) -> None:
    vault, seen = Vault(), list[Any]()
    store = CheckpointStore(tmp_path)
    found = run(many_outcomes(vault, told, seen), store, checkpoint_every_n=9)
    assert found["result"] == "done"
    told.text += f"{found} {found['report']}"
    assert vault.got[0] == ("ada", SECRET, TOKEN)  # the tool has the true ones
    assert vault.got[1] == ("bob", [SECRET], None)
    assert len(vault.got) == 3 * 5  # and was not called again by the recovery
    told.text += f"{[str(call) for call in vault.seen]} {[repr(call) for call in vault.seen]}"
    told.text += f"{shown(tmp_path)}"
    check_nowhere(tmp_path, told)
    names = [one[0] for one in seen if isinstance(one, tuple)]
    assert names == ["ValueError", "KeyError", "OSError", "TypeError", "RefusedValueError"] * 3
    # Some show the local variables of a traceback's frames: the tool's frame is left out.
    for *_, exc in (one for one in seen if isinstance(one, tuple)):
        frames = {frame.name for frame in traceback.extract_tb(exc.__traceback__)}
        assert not frames & {"rejects", "leaks", "login"}
    cause = seen[3][2].__cause__
    assert (type(cause), "[redacted]" in str(cause)) == (LookupError, True)
    texts = [one[1] for one in seen if isinstance(one, tuple)]
    assert texts[0] == "('bad password [redacted]', '[redacted]')"
    assert "login(password): a redacted value that cannot be carried" in texts


def test_a_run_that_failed_for_good_tells_nothing(tmp_path: Path, told: Everything) -> None:
    vault = Vault()

    async def agent(run: Run) -> Any:
        await run.call(vault.leaks, {"password": SECRET, "token": TOKEN})

    store = CheckpointStore(tmp_path)
    for _ in range(2):
        with pytest.raises(RunFailedError) as caught:
            run(agent, store)
        told.error(caught.value)
        told.text += caught.value.traceback
    check_nowhere(tmp_path, told)
    assert "[redacted]" in told.text


def test_a_call_in_doubt_is_known_again_and_resolved_unseen(
    tmp_path: Path, told: Everything
) -> None:
    vault, asked = Vault(), list[Call]()

    def ask(call: Call) -> Resolution:
        asked.append(call)
        return Resolution.unknown() if len(asked) == 1 else Resolution.retry()

    make: Any = tool
    asks = make(vault.dies, name="asks", reconcile=ask)

    async def agent(run: Run) -> Any:
        try:
            return await run.call(vault.dies, SECRET)
        except ToolError as exc:
            told.error(exc)
            return await run.call(asks, SECRET)

    for _ in range(2):
        with pytest.raises((Died, InDoubtError)) as caught:
            run(agent, CheckpointStore(tmp_path))
        told.error(caught.value)
    assert isinstance(caught.value, InDoubtError)
    (call,) = caught.value.calls
    (hidden,) = call.args
    assert isinstance(hidden, Redacted)
    assert "<redacted, digest" in str(call)
    resolve(CheckpointStore(tmp_path), "run", call.lsn, Resolution.fail("no"))
    for _ in range(3):
        with pytest.raises((Died, InDoubtError)) as caught:
            run(agent, CheckpointStore(tmp_path))
        told.error(caught.value)
    assert [type(one.args[0]) for one in asked] == [Redacted] * 2
    told.text += f"{asked}"
    check_nowhere(tmp_path, told)


def test_a_divergence_shows_no_secret(tmp_path: Path, told: Everything) -> None:
    vault = Vault()

    def version(password: str) -> Any:
        def agent(run: SyncRun) -> Any:
            run.call(vault.login, "ada", password)
            if run.recovery_count == 0:
                raise Died
            return "done"

        return agent

    with pytest.raises(Died):
        run(version(SECRET), CheckpointStore(tmp_path))
    with pytest.raises(DivergenceError) as caught:  # other secrets are other arguments
        run(version("sk-token" + SECRET), CheckpointStore(tmp_path))
    told.error(caught.value)
    assert "<redacted, digest" in str(caught.value)
    assert run(version(SECRET), CheckpointStore(tmp_path))["result"] == "done"
    check_nowhere(tmp_path, told)
    assert len(vault.got) == 1


def test_compensations_see_placeholders(tmp_path: Path, told: Everything) -> None:
    undone: list[Call] = []

    def logout(call: Call, outcome: Any) -> None:
        undone.append(call)

    @tool(redact=["password"], undo=logout)
    def login(user: str, password: str) -> str:
        return user

    async def agent(run: Run) -> Any:
        await run.call(login, "ada", password=SECRET)
        await run.undo()

    run(agent, CheckpointStore(tmp_path))
    told.text += f"{undone}"
    check_nowhere(tmp_path, told)
    (call,) = undone
    assert call.args[0] == "ada"
    assert isinstance(call.args[1], Redacted)


def digests_of(tmp_path: Path, name: str, *secrets: Any) -> list[bytes]:
    calls: list[Any] = []

    @tool(redact=["a", "b"])
    def take(a: Any, b: Any = None) -> None:
        call = current_call()
        assert call is not None
        calls.append([part.digest for part in call.args])

    def agent(run: SyncRun) -> None:
        for secret in secrets:
            run.call(take, *secret)

    run(agent, CheckpointStore(tmp_path / name))
    return calls


def test_digests_are_equal_for_equal_values_of_one_run_alone(tmp_path: Path) -> None:
    one, again, other = digests_of(tmp_path, "x", ["pin"], ["pin"], ["pon"])
    assert one == again != other
    assert digests_of(tmp_path, "y", ["pin"])[0] != one  # another run has another key
    ((a, b),) = digests_of(tmp_path, "z", ["pin", "pin"])
    assert a != b  # nobody sees that two parameters have the same value
    assert {len(digest) for digest in (*one, a, b)} == {16}


def test_names_are_those_of_parameters() -> None:
    def plain(to: str) -> None: ...

    def send(to: str, *parts: str, **options: Any) -> None: ...

    tool: Any = recovery.tool

    tool(send, redact=["to", "parts", "anything"])
    for name in ("password", "to.password"):  # a whole value is redacted, and no part of it
        with pytest.raises(ValueError, match="plain has no such parameter"):
            tool(plain, redact=[name])
    with pytest.raises(TypeError, match="sequence of names"):
        tool(plain, redact="to")


def test_parameters_of_all_kinds(tmp_path: Path) -> None:
    got: list[Any] = []

    @tool(redact=["rest", "key", "named"])
    def take(first: int, *rest: str, named: str = "x", **more: Any) -> None:
        got.append((first, rest, named, more, current_call()))

    def agent(run: SyncRun) -> None:
        run.call(take, 1, "secret1", "secret2", named="secret3", key="secret4", other=5)

    run(agent, CheckpointStore(tmp_path))
    first, rest, named, more, call = got[0]
    assert (first, rest, named) == (1, ("secret1", "secret2"), "secret3")
    assert more == {"key": "secret4", "other": 5}
    assert [type(part) for part in call.args] == [int, Redacted, Redacted]
    assert call.kwargs["other"] == 5
    assert {type(call.kwargs[name]) for name in ("named", "key")} == {Redacted}
    assert not any(b"secret" in file.read_bytes() for file in tmp_path.rglob("*") if file.is_file())


def test_a_redacted_value_that_cannot_be_carried_is_refused_without_its_path(
    tmp_path: Path,
) -> None:
    vault = Vault()

    def agent(run: SyncRun) -> None:
        run.call(vault.login, "ada", {SECRET: object()})

    with pytest.raises(RefusedValueError) as caught:
        run(agent, CheckpointStore(tmp_path))
    assert str(caught.value) == "login(password): a redacted value that cannot be carried"
    assert vault.got == []


def test_a_call_is_known_again_in_a_fork_of_a_fork(tmp_path: Path, told: Everything) -> None:
    """Its digests are those of the run that it came from, whose key it has."""
    vault, store = Vault(), CheckpointStore(tmp_path)

    async def agent(run: Run) -> Any:
        async for step in run.steps():
            await run.call(vault.login, str(step), SECRET)
            if step == 3:
                return run.run_id

    run(agent, store)
    store.run("run").fork("second", at_step=2)
    store.run("second").fork("third")
    of = recovery.RecoverableAgent(agent, store)
    assert of.run_with_recovery_sync("task", "third")["result"] == "third"
    assert [user for user, _, _ in vault.got] == ["1", "2", "3", "3"]
    check_nowhere(tmp_path, told)


def test_a_stream_has_the_true_arguments(tmp_path: Path, told: Everything) -> None:
    got: list[str] = []

    @tool(redact=["password"])
    async def words(password: str) -> Any:
        got.append(password)
        yield "a"
        yield "b"

    async def agent(run: Run) -> Any:
        async with run.stream(words, SECRET) as stream:
            return [chunk async for chunk in stream]

    assert run(agent, CheckpointStore(tmp_path))["result"] == ["a", "b"]
    assert got == [SECRET]
    check_nowhere(tmp_path, told)


def test_retries_in_another_process_have_the_true_arguments(tmp_path: Path) -> None:
    got: list[str] = []

    @tool(redact=["password"], after_crash="retry")
    def login(password: str) -> str:
        got.append(password)
        if len(got) == 1:
            raise Died
        return "in"

    def agent(run: SyncRun) -> Any:
        return run.call(login, password=SECRET)

    with pytest.raises(Died):
        run(agent, CheckpointStore(tmp_path))
    assert run(agent, CheckpointStore(tmp_path))["result"] == "in"
    assert got == [SECRET] * 2


# -- every kind of value by every route


class RefusalError(Exception):
    def __init__(self, text: str, held: Any) -> None:
        super().__init__(text)
        self.held = held


def _quote(value: Any) -> str:
    return urllib.parse.quote(str(value))


VALUES: dict[str, tuple[Any, ...]] = {  # each with what of it is not to be seen
    "number": (4111_1111_1111_1111, "4111111111111111", "4,111,111"),
    "negative": (-87654321, "87654321", "87,654"),
    "float": (1234.5678, "1234.5678", "1,234.5"),
    "decimal": (Decimal("98765.4321"), "98765.4321", "98,765.4"),
    "date": (date(1984, 5, 23), "1984-05-23", "1984, 5, 23"),
    "time": (time(13, 37, 59), "13:37:59", "13, 37, 59"),
    "datetime": (datetime(1984, 5, 23, 13, 37, tzinfo=UTC), "1984-05-23", "1984, 5, 23"),
    "uuid": (UUID("deadbeef-0000-4000-8000-00000000cafe"), "deadbeef-0", "deadbeef000040008"),
    "path": (PurePosixPath("/home/ann/diagnosis.txt"), "diagnosis"),
    "text": ("hunter2 \u017c\u00f3\u0142w", "hunter2"),
    "quotes": ('it\'s "hunter2"', "hunter2"),
    "lines": ("hunter2 first\nsecond hunter3", "hunter2", "hunter3"),
    "bytes": (b"\xffhunter2", "hunter2", "68756e74657232"),
    "key": ({"hunter2@example.org": 1}, "hunter2"),
    "nested": ({"card": [{"number": 4111222233334444}]}, "4111222233334444"),
}


def _noted(value: Any) -> Exception:
    exc = ValueError("refused")
    exc.add_note(f"given: {value}")
    return exc


def _caused(value: Any) -> Exception:
    exc = ValueError("refused")
    exc.__cause__ = TypeError(f"no {value!r}", value)
    return exc


WAYS: dict[str, Callable[[Any], Exception]] = {
    "as text": lambda value: ValueError(f"{value} is refused"),
    "as repr": lambda value: ValueError(f"refused: {value!r}"),
    "with commas": lambda value: ValueError(
        f"{value:,}" if isinstance(value, int | float | Decimal) else f"{value}"
    ),
    "as JSON": lambda value: ValueError(json.dumps(value, default=str)),
    "in an address": lambda value: ConnectionError(f"http://example.org/?q={_quote(value)}"),
    "by line": lambda value: ValueError("\n  > ".join(str(value).splitlines())),
    "as an argument": lambda value: ValueError("refused", value),
    "in a list": lambda value: ValueError("refused", [{"given": [value]}]),
    "as an attribute": lambda value: RefusalError("refused", value),
    "in a note": _noted,
    "as a key": KeyError,
    "as a cause": _caused,
}


@pytest.mark.parametrize("name", VALUES)
def test_an_exception_tells_no_secret(name: str, tmp_path: Path, told: Everything) -> None:
    (value, *fragments), wrong = VALUES[name], []
    for way, refusal in WAYS.items():

        @tool(redact=["secret"], retry=Retry(2, 0), name=f"refuses {name} {way}")
        def refuses(secret: Any, refusal: Any = refusal) -> None:
            raise refusal(secret)

        async def agent(run: Run, refuses: Any = refuses) -> None:
            await run.call(refuses, value)

        with suppress(RunFailedError):
            run(agent, CheckpointStore(tmp_path / way))
        written = b"".join(one.read_bytes() for one in (tmp_path / way).rglob("*.seg"))
        everything = written + told.text.encode()
        found = [text for text in fragments if text.encode() in everything]
        found += ["as it is packed"] * (bytes(pack(value, ""))[1:] in everything)
        wrong += [(way, *found)] if found or not written else []
        told.text = ""
    assert not wrong


def test_a_result_that_cannot_be_recorded_is_shown_without_secrets_where_its_text_is_cut(
    tmp_path: Path,
) -> None:
    """Half a secret is not found any more: so the text is cut behind the search for them."""
    secret = "correct-horse-battery-staple"
    for before in range(SHOWN_SIZE // 2 - len(secret), SHOWN_SIZE // 2, 5):
        shown = "." * before + secret + "." * SHOWN_SIZE

        @tool(redact=["secret"])
        def look(secret: str, shown: str = shown) -> Any:
            return type("Opaque", (), {"__repr__": lambda self: shown})()

        def agent(run: SyncRun, look: Any = look) -> Any:
            return look(secret)

        with pytest.raises(UnrecordedResultError) as stopped:
            run(agent, CheckpointStore(tmp_path / str(before)))
        assert "correct" not in str(stopped.value) and "..." in str(stopped.value)


def test_what_is_hidden_already_stays_as_it_is() -> None:
    @tool(redact=["key", "keys"])
    def one(key: str, *keys: str) -> None: ...

    secrets, spec = Secrets("salt"), spec_of(one)
    shown = secrets.hide(spec, (("a", "b", "c"), {}))
    assert len({repr(shown[0]), repr(secrets.hide(spec, shown)[0])}) == 1
    assert "a" not in shown[0]
