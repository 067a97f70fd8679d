"""Checks the model of leases with three owners and all faults together: `make ownership`."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.ownership.models import check, missing


def main() -> int:
    """0 if all properties hold."""
    if missing():
        print(f"skipped: {missing()} not installed   (Debian: apt-get install spin gcc)")
        return 0
    bad = 0
    for model, *switches in (("files",), ("leases",), ("leases", "TIMELY")):
        began = time.monotonic()
        with TemporaryDirectory() as place:
            found = check(model, Path(place), *switches, optimize="-O1")
        bad += bool(found.failed)
        how = f"{found.failed} FAILS" if found.failed else "holds"
        name = " ".join([model, *switches])
        print(f"{name}: {how}, {found.states:,} states, {time.monotonic() - began:.0f} s")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
