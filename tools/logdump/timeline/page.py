"""Writes the model of a run as one HTML page. It loads nothing, and no data in it is markup."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterator
from hashlib import sha256
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

SCRIPTS = "model", "chart", "panel", "page"  # concatenated to one script
PLAIN_MAX = 1000  # calls in the table for readers without scripts

# Characters that would end the element around the data, or be markup, in any parser of HTML. In
# JSON they occur only in strings, where an escape means the same.
_ESCAPES = {ord(char): f"\\u{ord(char):04x}" for char in "<>&'"}


def page(model: dict[str, Any]) -> Iterator[str]:
    """The page in pieces, all of them ASCII, so that it reads the same in any encoding."""
    style = _source("page.css")
    script = "\n".join(_source(f"{name}.js") for name in SCRIPTS)
    policy = (
        f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    template = Template(_source("page.html"))
    yield template.substitute(
        csp=policy,
        title=_text(model["run"]["run_id"]),
        style=style,
        script=script,
        model=as_data(model),
        plain="".join(_plain(model)),
    )


def _source(name: str) -> str:
    return files(__package__).joinpath(name).read_text("utf-8")


def as_data(model: dict[str, Any]) -> str:
    """JSON that may be put in a ``script`` element."""
    return json.dumps(model, separators=(",", ":"), allow_nan=False).translate(_ESCAPES)


def _digest(source: str) -> str:
    """The hash by which the policy allows the one style and the one script."""
    assert source.isascii()
    return f"sha256-{b64encode(sha256(source.encode()).digest()).decode()}"


def _text(text: object) -> str:
    return escape(str(text)).encode("ascii", "xmlcharrefreplace").decode()


def _plain(model: dict[str, Any]) -> Iterator[str]:
    """The calls as a table."""
    run, calls = model["run"], model["calls"]
    yield f"<p>Run {_text(run['run_id'])}: {_text(run['state'])}. The timeline needs JavaScript."
    yield "<table><tr><th>LSN<th>step<th>tool<th>state"
    doubtful = [call for call in calls if call["state"] == "doubt"]
    for call in [*doubtful, *calls][:PLAIN_MAX]:
        cells = call["lsn"], call.get("step", ""), call["tool"], model["states"][call["state"]]
        yield "<tr>" + "".join(f"<td>{_text(cell)}" for cell in cells)
    yield "</table>"
    if len(calls) > PLAIN_MAX:
        yield f"<p>and {len(calls) - PLAIN_MAX} more calls"
