"""Makes the pictures of the documentation: ``python -m tests.cli.screens.pictures``.

``docs/img/timeline.png`` needs Chromium, ``docs/img/browse.svg`` Textual. With ``--axe FILE``,
the script of axe-core (``npm install axe-core``: ``axe-core/axe.min.js``), it also prints what that
finds wrong in the page for people who cannot see it well, and fails if that is serious.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from logdump.browse.app import Browser
from logdump.context import Context

from tests.cli.harness import RUNS, call
from tests.cli.screens import timelines
from tests.cli.screens.chromium import BINARY, Page, page
from tests.support.paths import ROOT

IMAGES = ROOT / "docs" / "img"
SERIOUS = ("serious", "critical")


def timeline(shown: Page, folder: Path) -> None:
    """A run that three processes had, with a call in doubt."""
    timelines.main(str(folder))
    assert call("logdump", "timeline", "day", "-o", "day.html", cwd=folder).code == 0
    shown.size(1180, 760)
    shown.open(folder / "day.html")
    shown.screenshot(IMAGES / "timeline.png")


def faults(shown: Page, axe: Path) -> list[dict[str, Any]]:
    """What axe-core says of the page."""
    shown.run(axe.read_text("utf-8") + ";0")
    return list(
        json.loads(shown.run("axe.run().then((found) => JSON.stringify(found.violations))"))
    )


async def browse() -> str:
    """Runs with their states, and a damaged record; as SVG."""
    names = sorted(path.name for path in RUNS.iterdir())
    context = Context({"path": str(RUNS), "key_file": None}, io.StringIO())
    app = Browser(names, lambda name: context.read(str(RUNS / name)), context.redaction)
    async with app.run_test(size=(150, 28)) as pilot:
        await app.workers.wait_for_complete()
        for _ in range(names.index("damaged_payload")):
            await pilot.press("down")
        await pilot.press("enter", "p")
        await app.workers.wait_for_complete()
        await pilot.pause()
        return app.export_screenshot(title="logdump browse")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--axe", type=Path)
    axe = parser.parse_args().axe
    (IMAGES / "browse.svg").write_text(asyncio.run(browse()), "utf-8")
    if BINARY is None:
        print("no chromium or google-chrome here: the timeline has no new picture")
        return 0
    found = []
    with tempfile.TemporaryDirectory() as folder, page(BINARY) as shown:
        timeline(shown, Path(folder))
        if axe is not None:
            found = faults(shown, axe)
    for one in found:
        places = [node["target"] for node in one["nodes"]][:5]
        print(f"{one['impact']}: {one['id']}: {one['help']}: {places}")
    return int(any(one["impact"] in SERIOUS for one in found))


if __name__ == "__main__":
    sys.exit(main())
