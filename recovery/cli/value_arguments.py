"""Parses values that are given on the command line."""

from __future__ import annotations

import json
import sys
from math import isfinite
from pathlib import Path
from typing import Annotated, Any

import typer

AsText = Annotated[bool, typer.Option("--text", help="The value is text, not JSON.")]
VALUE = "JSON, @FILE, or - for standard input."


def value_given(text: str, name: str, *, as_text: bool = False) -> Any:
    """The value: JSON (or the text itself), from the file ``@FILE``, or with ``-`` from standard
    input. ValueError says what is wrong with ``name``."""
    where = name
    if text == "-":
        where, text = f"{name}, standard input", sys.stdin.read()
    elif text.startswith("@"):
        where = f"{name}, {text[1:]}"
        try:
            text = Path(text[1:]).read_text("utf-8")
        except UnicodeDecodeError:
            raise ValueError(f"{where}: not text in UTF-8") from None
    if as_text:
        return text
    try:
        return json.loads(
            text, object_pairs_hook=_once, parse_constant=_no_json, parse_float=_finite
        )
    except (ValueError, RecursionError) as exc:
        reason = exc if isinstance(exc, ValueError) else "it is nested too deeply"
        is_text = text.lstrip()[:1] not in ('"', "{", "[")
        quoted = " Text is given in quotes: '\"...\"'." if is_text else ""
        raise ValueError(f"{where} is not JSON: {reason}.{quoted}") from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object. With a duplicate key it is unclear which value was meant."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {key!r} is there twice")
        found[key] = value
    return found


def _no_json(text: str) -> Any:
    raise ValueError(f"{text} is no number of JSON")


def _finite(text: str) -> float:
    if not isfinite(number := float(text)):
        raise ValueError(f"{text} is too large for a float")
    return number
