"""The timeline's model: what takes which lane, how time is drawn, how calls stand; and its page."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from logdump.timeline.layout import Axis, Bar, place
from logdump.timeline.page import as_data, page
from logdump.timeline.texts import Texts
from logdump.timeline.timeline import gather

from eventlog import EventLog, Packed
from eventlog.encryption import Encryption
from eventlog.errors import EncryptedLogError
from recovery.journal.encoding import encode
from recovery.journal.events import (
    AttemptFailed,
    CallAbandoned,
    CallDecided,
    CallResolved,
    CallRetried,
    CallReturned,
    RunParked,
    RunStarted,
)
from recovery.values.backrefs import CompositeMessage
from recovery.values.codec import REGISTERED
from recovery.values.pack import pack
from recovery.values.render import Redaction
from recovery.values.types import Ref
from tests.cli.screens.timelines import HOSTILE, Script, day, hostile
from tests.support.paths import ROOT, TESTS


def model_of(path: Path, *, last: int = 0, size: int = 2048, hide: tuple[str, ...] = ()) -> Any:
    with EventLog.read(path) as reader:
        return gather(reader, Texts(Redaction(hide), size), last)


@pytest.fixture
def run(tmp_path: Path) -> Script:
    script = Script(tmp_path / "run", "task")
    script.step()
    return script


def ended(run: Script, **options: Any) -> Any:
    """The model, after the process is gone."""
    run.die()
    return model_of(run.path, **options)


def calls(model: Any) -> dict[str, Any]:
    return {call["tool"]: call for call in model["calls"]}


# -- lanes


@pytest.mark.parametrize(
    ("bars", "lanes"),
    [
        ([Bar(1, 2), Bar(3, 4), Bar(5, 6)], [0, 0, 0]),
        ([Bar(1, 9), Bar(2, 4), Bar(3, 6), Bar(5, 7), Bar(8, 9)], [0, 1, 2, 1, 1]),
        ([Bar(1, 3), Bar(3, 4)], [0, 1]),  # they share a record
    ],
)
def test_calls_at_the_same_time_are_side_by_side_in_the_highest_free_lane(bars, lanes):
    place(bars)
    assert [bar.lane for bar in bars] == lanes


def test_what_is_inside_a_call_is_below_it_and_above_the_next():
    outer = Bar(1, 8, [Bar(2, 5, [Bar(3, 4)]), Bar(3, 6)])
    beside = Bar(2, 3)
    assert place([outer, beside]) == 5
    assert [outer.lane, outer.inside[0].lane, outer.inside[0].inside[0].lane] == [0, 1, 2]
    assert (outer.inside[1].lane, beside.lane) == (3, 4)


def test_a_call_is_given_no_lane_that_is_free_only_until_what_is_inside_another_begins():
    early, outer = Bar(1, 2), Bar(3, 9, [Bar(6, 7)])
    small = Bar(4, 8)
    assert place([early, outer, small]) == 3
    assert (outer.lane, outer.inside[0].lane, small.lane) == (0, 1, 2)


def test_what_is_inside_and_lasts_longer_holds_the_room_of_both():
    outer, later = Bar(1, 3, [Bar(2, 9)]), Bar(5, 6)
    place([outer, later])
    assert (outer.lane, outer.inside[0].lane, later.lane) == (0, 1, 2)


@st.composite
def bars(draw: st.DrawFn, depth: int = 2) -> Bar:
    first = draw(st.integers(1, 60))
    inside = draw(st.lists(bars(depth - 1), max_size=3)) if depth else []
    for bar in inside:
        _move(bar, first)
    return Bar(first, first + draw(st.integers(0, 20)), inside)


def _move(bar: Bar, by: int) -> None:
    bar.first += by
    bar.last += by
    for inner in bar.inside:
        _move(inner, by)


def everything(placed: list[Bar]) -> list[Bar]:
    return [one for bar in placed for one in (bar, *everything(bar.inside))]


@given(st.lists(bars(), max_size=12))
def test_no_two_calls_overlap_in_a_lane_and_what_is_inside_is_below(placed):
    placed.sort(key=lambda bar: bar.first)
    count = place(placed)
    found = everything(placed)
    assert all(0 <= bar.lane < count for bar in found) or not found
    for n, one in enumerate(found):
        for other in found[n + 1 :]:
            apart = one.last < other.first or other.last < one.first
            assert one.lane != other.lane or apart
        assert all(inner.lane > one.lane for inner in one.inside)


# -- time


def axis_of(*records: tuple[float, bool]) -> Axis:
    axis = Axis()
    for at_s, at_work in records:
        axis.add(round(at_s * 1e6), at_work)
    return axis


def test_time_at_work_is_drawn_to_scale_however_long_it_is():
    axis = axis_of((0, True), (1, True), (90_000, True))
    assert (axis.pauses_us, axis.breaks()) == ([0, 1_000_000, 89_999_000_000], [])


def test_a_long_wait_is_broken_off_and_a_short_one_is_not():
    axis = axis_of((0, True), (18, True), (18.5, False), (3 * 86400, False), (3 * 86400 + 18, True))
    assert axis.breaks() == [(3, 2_000_000)]  # 36 s of work


def test_many_waits_leave_room_for_the_work():
    axis = axis_of((0, True), (10, True))
    for n in range(1, 100):
        axis.add(round((10 + n * 3600) * 1e6), False)
    drawn = sum(width for _, width in axis.breaks())
    assert len(axis.breaks()) == 99 and 4_000_000 < drawn <= 5_000_000


def test_a_clock_that_was_set_back_stands_still_and_is_noted():
    axis = axis_of((100, True), (101, True), (41, True), (42, True))
    assert axis.pauses_us == [0, 1_000_000, 0, 1_000_000]
    assert axis.set_back == [(2, 60_000_000)]


def test_only_waiting_counts_as_a_wait(run):
    nap = run.call("run.sleep", "wait")
    work = run.call("work")
    run.wait(500).returned(work, 1)
    run.wait(5000).returned(nap, 1)
    run.wait(50).did("more", 1, 1)
    model = ended(run)
    # 551 s of work; the sleep behind it is broken off, though not what was done meanwhile.
    assert [(index, round(width / 1e6)) for index, width in model["breaks"]] == [(5, 31)]


# -- processes


def test_each_process_is_told_with_where_it_ended(run):
    cut = run.call("slow")
    resumed = run.wait(5).resume(86_400, 0)
    run.wait(1).note(CallRetried(cut, 2))
    last = run.wait(1).returned(cut, 1)
    model = ended(run)
    assert model["lives"] == [
        {"n": 0, "from": 1, "to": cut, "end": "gone", "cut": 1},
        {"n": 1, "from": resumed, "step": 0, "to": last, "end": "gone"},
    ]
    assert [index for index, _ in model["breaks"]] == [resumed - 1]
    (call,) = model["calls"]
    assert call["phases"] == [["cut", 3, 3], ["lost", 3, 5], ["work", 5, 6]]
    assert (call["state"], call["attempts"]) == ("done", 2)


def test_what_somebody_decided_between_two_processes_is_not_of_the_first(run):
    mail = run.call("mail", "park")
    run.note(RunParked([mail]))
    run.die()
    run.reopen(600)
    run.note(CallResolved(mail, "outcome", pack("sent", "v"), "me", "asked the server"))
    run.die()
    run.reopen(300)
    model = ended(run)
    (life,) = model["lives"]
    assert (life["to"], life["end"]) == (4, "parked")
    (call,) = model["calls"]
    assert (call["state"], call["result"]) == ("done", "sent")
    assert call["history"] == [[5, "resolved: outcome by me: asked the server"]]


# -- calls


def test_a_call_in_doubt_is_told_with_its_key_and_what_recovery_does(run):
    lsn = run.call("charge", "park", args={"cents": 1490})
    run.wait(1).did("look", 1, 1)
    call = calls(ended(run))["charge"]
    assert (call["lsn"], call["state"], call["args"]) == (lsn, "doubt", "cents: 1490")
    assert re.fullmatch("[0-9a-f]{32}", call["key"])
    assert call["then"] == "parks the run until it is resolved"
    assert call["phases"] == [["cut", lsn, lsn + 2]]


def test_a_live_run_has_calls_under_way_and_none_in_doubt(run):
    run.call("charge", "park")
    model = model_of(run.path)
    assert (model["calls"][0]["state"], model["lives"][0]["end"]) == ("running", "live")
    run.die()


def test_attempts_and_pauses_are_phases(run):
    call = run.call("search")
    failed = run.wait(1).note(
        AttemptFailed(call, 1, "builtins.OSError", "down", 1.0, "Traceback x")
    )
    again = run.wait(2).note(CallRetried(call, 2))
    end = run.wait(1).returned(call, 1, [10, 5, 0.25])
    (told,) = ended(run)["calls"]
    assert told["phases"] == [
        ["failed", call, failed],
        ["wait", failed, again],
        ["work", again, end],
    ]
    assert told["history"] == [
        [failed, "attempt 1 failed: OSError: down", "Traceback x"],
        [again, "attempt 2 began"],
    ]
    assert (told["tokens"], told["cost"]) == ([10, 5], 0.25)


def test_a_call_waits_until_somebody_approves_it(run):
    call = run.call("pay", "park", asks_until=float("inf"))
    yes = run.wait(900).note(CallDecided(call, True, "ann", "", 1))
    end = run.wait(1).returned(call, 1)
    (told,) = ended(run)["calls"]
    assert told["phases"] == [["wait", call, yes], ["work", yes, end]]


def test_a_side_effect_inside_one_that_has_ended_is_in_doubt(run):
    outer = run.call("outer")
    run.call("inner", "park", inside=outer)
    run.wait(1).returned(outer, 1)
    told = calls(ended(run))
    assert [told[tool]["state"] for tool in ("outer", "inner")] == ["done", "doubt"]


def test_one_that_nobody_waits_for_and_what_was_under_way_inside_it(run):
    outer = run.call("outer")
    inner = run.call("inner", inside=outer)
    left = run.wait(1).note(CallAbandoned(outer, 1, "timeout", went_on=True))
    told = calls(ended(run))
    assert told["outer"]["phases"] == [["left", outer, left]]
    assert told["inner"]["phases"] == [["left", inner, left]]
    assert [told[tool]["state"] for tool in ("outer", "inner")] == ["left", "left"]
    assert [told[tool]["lane"] for tool in ("outer", "inner")] == [0, 1]


def test_a_wait_goes_on_in_the_next_process(run):
    nap = run.call("run.sleep", "wait")
    run.wait(10).resume(100, 0)
    end = run.wait(5).returned(nap, None)
    (told,) = ended(run)["calls"]
    assert told["phases"] == [["wait", nap, end]]


def test_a_child_run_is_taken_up_again_without_a_record_of_its_own(run):
    child = run.call("child", "retry", child="run+child-1")
    back = run.wait(10).resume(100, 0)
    end = run.wait(5).returned(child, 1)
    (told,) = ended(run)["calls"]
    assert told["phases"] == [["cut", child, child], ["lost", child, back], ["work", back, end]]
    assert told["child"] == "run+child-1"


# -- messages


def test_messages_are_told_with_the_call_that_made_them_and_when_they_went(run):
    run.say({"role": "user", "content": "hello"}, "second")
    reply = run.did("ask_model", 1, {"role": "assistant", "content": "hi"})
    first = run.say(Ref(reply))
    gone = run.say("instead", start=1, stop=2)
    told = ended(run)["messages"]
    assert [(one.get("role"), one.get("text")) for one in told] == [
        ("user", "hello"),
        (None, "second"),
        ("assistant", None),
        (None, "instead"),
    ]
    assert (told[2]["call"], told[2]["same"], told[2]["lsn"]) == (reply - 1, True, first)
    assert [one.get("removed") for one in told] == [None, gone, None, None]


def test_changes_far_behind_the_end_need_no_memory(run):
    run.say("one", start=1 << 60)
    run.say("two", start=(1 << 60) + 1)
    run.say("three", start=1 << 60, stop=(1 << 60) + 1)
    told = ended(run)["messages"]
    assert [(one["text"], "removed" in one) for one in told] == [
        ("one", True),
        ("two", False),
        ("three", False),
    ]


# -- of a part


def test_only_the_newest_records_are_told_and_calls_of_before_are_known(run):
    early = run.call("early", args={"x": 1})
    for _ in range(5):
        run.wait(1).did("work", 1, 1)
    end = run.wait(1).returned(early, "late")
    model = ended(run, last=4)
    assert (model["run"]["records"], model["run"]["older"]) == (4, end - 4)
    assert model["lsns"] == [[0, end - 3]]
    known = calls(model)["early"]
    assert known["earlier"] and known["result"] == "late"
    assert known["phases"] == [["work", end - 3, end]]
    assert model["run"]["attempts"] == 6  # of the whole run


def test_values_are_cut_and_it_says_by_how_much(run):
    run.did("big", 1, "x" * 5000)
    (call,) = ended(run, size=100)["calls"]
    assert call["result"] == ["x" * 100, 4900]


def test_what_is_redacted_is_nowhere_in_the_page(run):
    secret = "hunter2-" * 20
    run.did("login", 1, {"token": secret, "text": "fine"}, args={"password": secret, "user": "ann"})
    outcome = run.did("fetch_secret", 1, secret)
    run.say(Ref(outcome), {"role": "tool", "content": secret})
    run.failed(run.call("fetch_secret"), f"no such {secret}")
    model = ended(run, hide=("pass*", "token", "fetch_secret", "content"))
    shown = "".join(page(model))
    assert "hunter2" not in shown and "ann" in shown and "fine" in shown
    assert "hunter2" in "".join(page(model_of(run.path)))
    assert '"cents' not in shown and "[redacted]" in shown


def test_a_message_that_holds_what_a_hidden_tool_returned_is_hidden(run):
    secret = "hunter2-" * 20
    outcome = run.did("fetch_secret", 1, secret)
    start = b"\x82" + pack("role", "") + pack("tool", "") + pack("text", "")
    message = CompositeMessage((start, (outcome, 0, len(pack(secret, "")))))
    run.say(message)
    run.die()
    (told,) = model_of(run.path)["messages"]
    assert told["text"] == f"text: {secret}" and told["call"] == outcome - 1
    (told,) = model_of(run.path, hide=("fetch_*",))["messages"]
    assert told["text"] == "[redacted]"


def test_values_of_types_that_are_not_registered_here_are_shown(run):
    order = msgpack.ExtType(REGISTERED, msgpack.packb(["shop.Order", {"cents": 990}]))
    run.note(CallReturned(run.call("buy"), Packed(msgpack.packb(order))))
    (call,) = ended(run)["calls"]
    assert call["result"].split() == ["shop.Order:", "cents:", "990"]


def test_an_encrypted_run_is_told_with_its_key(tmp_path):
    encryption = Encryption(b"k" * 32)
    with EventLog.open(tmp_path / "run", "process", encryption=encryption) as log:
        log.append(*encode(RunStarted("run", pack("the task", "task"), "uid")))
    with EventLog.read(tmp_path / "run", encryption=encryption) as reader:
        model = gather(reader, Texts(Redaction(), 2048), 0)
    assert model["run"]["task"] == "the task"
    with pytest.raises(EncryptedLogError):
        model_of(tmp_path / "run")


def test_records_of_other_kinds_are_marks(run):
    run._log.append("my.note", {"text": "looked at it"})
    (mark,) = ended(run)["marks"]
    assert (mark["kind"], mark["text"]) == ("my.note", "text: looked at it")


# -- damage


def test_damage_is_in_its_place_and_what_comes_behind_it_keeps_its_own():
    model = model_of(TESTS / "data/runs/damaged_payload")
    (found,) = model["damage"]
    first, last = found["lost"]
    assert model["lsns"] == [[0, 1], [first - 1, last + 1]]
    assert found["i"] == first - 1 and str(first) in found["text"]


# -- the page


class Seen(HTMLParser):
    """The elements and attributes of a page, and the text in its script elements."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.texts: dict[str, list[str]] = {}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.texts.setdefault(self.tags[-1] if self.tags else "", []).append(data)


@pytest.fixture(params=["day", "hostile"])
def shown(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Any]:
    {"day": day, "hostile": hostile}[request.param](tmp_path / "run")
    model = model_of(tmp_path / "run")
    return "".join(page(model)), model


def test_the_page_needs_nothing_else(shown):
    text, _ = shown
    seen = Seen(text)
    assert text.isascii()
    assert {"link", "img", "iframe", "object", "base", "form"}.isdisjoint(seen.tags)
    assert not {"src", "href", "action", "style"} & {name for name, _ in seen.attributes}
    assert not [name for name, _ in seen.attributes if name.startswith("on")]
    assert not re.search(r"@import|url\(", "".join(seen.texts["style"]))


def test_without_scripts_there_is_a_table_of_the_calls(shown):
    text, model = shown
    (table,) = re.findall(r"<noscript>(.*?)</noscript>", text, re.DOTALL)
    rows = [re.split("<td>", row)[1:] for row in table.split("<tr>")[2:]]
    calls = {str(call["lsn"]): model["states"][call["state"]] for call in model["calls"]}
    assert {row[0]: row[3].partition("</table>")[0] for row in rows} == calls
    first = [row[3] for row in rows[: sum(call["state"] == "doubt" for call in model["calls"])]]
    assert set(first) <= {model["states"]["doubt"]}  # first, and again in their place


def test_the_policy_lets_the_one_script_and_the_one_style_of_the_page_run(shown):
    text, _ = shown
    seen = Seen(text)
    policy = next(value for _, value in seen.attributes if value and "default-src" in value)
    assert "default-src 'none'" in policy and "unsafe" not in policy and "http" not in policy

    def hashed(tag: str) -> str:
        (source,) = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        return b64encode(sha256(source.encode()).digest()).decode()

    assert f"script-src 'sha256-{hashed('script')}'" in policy
    assert f"style-src 'sha256-{hashed('style')}'" in policy


def test_no_data_is_markup(shown):
    text, model = shown
    (data,) = re.findall(r'<script type="application/json" id="model">(.*?)</script>', text)
    assert not set("<>&'") & set(data)
    assert json.loads(data) == json.loads(json.dumps(model))
    assert "owned" not in Seen(text).tags
    assert text.count("<script") == 2 and text.count("</script>") == 2
    assert "<img" not in text and "<svg" not in text


def test_scripts_of_the_page_make_no_markup():
    source = ROOT / "tools/logdump/timeline"
    for path in source.glob("*.js"):
        made = r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|Function\(|DOMParser"
        assert not re.search(made, path.read_text()), path


@given(st.text())
def test_any_text_stands_in_a_script_element(text):
    data = as_data({"x": text})
    assert json.loads(data) == {"x": text}
    assert data.isascii() and not set("<>&'") & set(data)


def test_hostile_texts_are_all_there(tmp_path):
    hostile(tmp_path / "run")
    model = model_of(tmp_path / "run")
    assert {call["tool"] for call in model["calls"]} >= {HOSTILE[0], HOSTILE[5]}
    shown = json.dumps(model, ensure_ascii=False)
    assert not {"\u202e", "\x1b", "\u2028"} & set(shown)  # escaped as text
