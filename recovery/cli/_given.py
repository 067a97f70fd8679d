"""Values that are given on the command line."""

from __future__ import annotations

import json
import sys
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
        return json.loads(text)
    except (ValueError, RecursionError) as exc:
        reason = exc if isinstance(exc, ValueError) else "it is nested too deeply"
        is_text = text.lstrip()[:1] not in ('"', "{", "[")
        quoted = " Text is given in quotes: '\"...\"'." if is_text else ""
        raise ValueError(f"{where} is not JSON: {reason}.{quoted}") from None
