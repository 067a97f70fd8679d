"""Runs the command ``recovery`` as ``python -m recovery.cli``."""

import sys

from recovery.cli import main

sys.exit(main())
