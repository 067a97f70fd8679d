"""Hunt: ``python -m tests.model --programs 500 --seed 1 --table``.

A case that fails is saved. ``--case FILE`` repeats it. The number of its program does not: faults
are aimed by what the hunt has hit before.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections import Counter
from pathlib import Path

import recovery
from tests.model.corpus_files import read, save
from tests.model.generate import FEATURES
from tests.model.hunt import OFTEN_WANTED, Case, Hunt
from tests.model.printer import printed
from tests.model.rules import Judged, judged
from tests.model.shrink import shrunk
from tests.model.table import table_lines, zeros


def main() -> int:
    given = arguments()
    if given.case:
        return sum(repeated(given, path) for path in given.case)
    hunt, found = Hunt(given.seed, frozenset(given.without), frozenset(given.often)), Counter[str]()
    began, number = time.process_time(), 0
    if given.kept and given.kept.exists():
        kept = json.loads(given.kept.read_text(encoding="utf-8"))
        number = kept["next"]
        hunt.table.update({(feature, fault): count for feature, fault, count in kept["table"]})
        hunt.counts.update(kept["counts"])
    print(f"the library is {Path(recovery.__file__).parent}")
    end = number + given.programs
    try:
        while number < end and not (given.stop and found):
            for case, one in hunt.cases(number, given.schedules):
                if one.findings:
                    found[one.findings[0].rule] += 1
                    what = f"program {number} of seed {given.seed}"
                    tell(given, what, f"{given.seed}-{number}", case, one)
                if time.process_time() - began > given.minutes * 60:
                    raise KeyboardInterrupt
            number += 1
    except KeyboardInterrupt:
        print(f"cut short in program {number}")
    spent = time.process_time() - began
    print(f"{dict(hunt.counts)} in {spent:.1f} s; found: {dict(found)}")
    if given.kept:
        rows = [(*pair, count) for pair, count in hunt.table.items()]
        kept = {"table": rows, "counts": hunt.counts, "next": number}
        given.kept.write_text(json.dumps(kept), encoding="utf-8")
    if given.table:
        print("\n".join(table_lines(hunt.table)))
        print(f"never hit: {zeros(hunt.table)}")
    return found.total()


def repeated(given: argparse.Namespace, path: Path) -> bool:
    """Whether the case of a file fails."""
    case, _ = read(path)
    found = judged(case.program, case.schedule)
    if found.findings:
        tell(given, str(path), path.stem, case, found)
    else:
        print(f"{path}: sound; ended: {found.lived.end.how}")
    return bool(found.findings)


def tell(given: argparse.Namespace, what: str, name: str, case: Case, found: Judged) -> None:
    (finding, *_) = found.findings
    print(f"{what}: {finding.rule}: {finding.what}", flush=True)
    if not given.case:
        path = given.save / f"{finding.rule.replace('/', '-')}-{name}.json"
        save(path, case, finding)
        print(f"  again: python -m tests.model --case {path}")
    if given.shrink:
        case, found = shrunk(case, finding.rule)
        (finding, *_) = found.findings
        path = given.save / f"{finding.rule.replace('/', '-')}-{name}-shrunk.json"
        save(path, case, finding)
        print(f"  shrunk, {path}: {finding.rule}: {finding.what}", flush=True)
    if given.show:
        print(printed(case.program), case.schedule)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.model", description=__doc__)
    parser.add_argument("--programs", type=int, default=100)
    parser.add_argument("--schedules", type=int, default=6, help="for each program")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=1e9, help="of the processor, at most")
    parser.add_argument("--stop", action="store_true", help="at the first program that fails")
    parser.add_argument("--table", action="store_true", help="which fault hit what, how often")
    parser.add_argument(
        "--kept", type=Path, help="a file from which the hunt goes on, and to which it is written"
    )
    parser.add_argument("--without", nargs="*", choices=FEATURES, default=(), help="such programs")
    parser.add_argument(
        "--often", nargs="*", choices=OFTEN_WANTED, default=(), help="such programs"
    )
    parser.add_argument("--shrink", action="store_true", help="make what fails small")
    parser.add_argument("--show", action="store_true", help="the programs that fail")
    parser.add_argument(
        "--save", type=Path, default=Path("build/model"), help="a directory for what fails"
    )
    parser.add_argument("--case", type=Path, nargs="*", help="repeat these cases; hunt for none")
    return parser.parse_args()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the table is shown then, too
    sys.exit(main() > 0)
