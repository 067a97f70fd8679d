"""Hunt: ``python -m tests.model --programs 500 --seed 1 --table``."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections import Counter
from pathlib import Path

import recovery
from tests.model.corpus_files import save
from tests.model.generate import FEATURES
from tests.model.hunt import OFTEN_WANTED, Case, Hunt
from tests.model.printer import printed
from tests.model.rules import Judged
from tests.model.shrink import shrunk
from tests.model.table import table_lines, zeros


def main() -> int:
    given = arguments()
    hunt, found = Hunt(given.seed, frozenset(given.without), frozenset(given.often)), Counter[str]()
    began, number = time.process_time(), given.first
    print(f"the library is {Path(recovery.__file__).parent}")
    try:
        for number in range(given.first, given.first + given.programs):
            if given.stop and found:
                break
            for case, judged in hunt.cases(number, given.schedules):
                if judged.findings:
                    found[judged.findings[0].rule] += 1
                    tell(given, number, case, judged)
                if time.process_time() - began > given.minutes * 60:
                    raise KeyboardInterrupt
    except KeyboardInterrupt:
        print(f"cut short in program {number}")
    spent = time.process_time() - began
    print(f"{dict(hunt.counts)} in {spent:.1f} s; found: {dict(found)}")
    if given.table:
        print("\n".join(table_lines(hunt.table)))
        print(f"never hit: {zeros(hunt.table)}")
    return found.total()


def tell(given: argparse.Namespace, number: int, case: Case, judged: Judged) -> None:
    (finding, *_) = judged.findings
    print(f"program {number} of seed {given.seed}: {finding.rule}: {finding.what}", flush=True)
    if given.shrink:
        case, judged = shrunk(case, finding.rule)
        (finding, *_) = judged.findings
        print(f"  shrunk: {finding.rule}: {finding.what}")
    if given.show:
        print(printed(case.program), case.schedule)
    if given.save:
        name = f"{finding.rule.replace('/', '-')}-{given.seed}-{number}.json"
        save(given.save / name, case, finding)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.model", description=__doc__)
    parser.add_argument("--programs", type=int, default=100)
    parser.add_argument("--first", type=int, default=0, help="the number of the first program")
    parser.add_argument("--schedules", type=int, default=6, help="for each program")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=1e9, help="of the processor, at most")
    parser.add_argument("--stop", action="store_true", help="at the first program that fails")
    parser.add_argument("--table", action="store_true", help="which fault hit what, how often")
    parser.add_argument("--without", nargs="*", choices=FEATURES, default=(), help="such programs")
    parser.add_argument(
        "--often", nargs="*", choices=OFTEN_WANTED, default=(), help="such programs"
    )
    parser.add_argument("--shrink", action="store_true", help="make what fails small")
    parser.add_argument("--show", action="store_true", help="the programs that fail")
    parser.add_argument("--save", type=Path, help="a directory for what fails")
    return parser.parse_args()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the table is shown then, too
    sys.exit(main() > 0)
