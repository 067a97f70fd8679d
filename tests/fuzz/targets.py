"""What is fuzzed: each target takes bytes, and raises when a promise does not hold."""

from __future__ import annotations

from collections.abc import Callable

from tests.fuzz.codecs import codecs
from tests.fuzz.directory import directory
from tests.fuzz.encrypted import encrypted
from tests.fuzz.frame import frame
from tests.fuzz.logdump import logdump
from tests.fuzz.record import record
from tests.fuzz.runtime import checkpoint, event, value
from tests.fuzz.segment import segment

Target = Callable[[bytes], None]

TARGETS: dict[str, Target] = {
    target.__name__: target
    for target in (
        frame,
        segment,
        record,
        value,
        event,
        checkpoint,
        directory,
        logdump,
        encrypted,
        codecs,
    )
}
