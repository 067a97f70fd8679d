"""Runs the command ``logdump`` as ``python -m logdump``."""

import sys

from logdump import main

if __name__ == "__main__":
    sys.exit(main())
