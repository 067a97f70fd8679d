"""``python -m recovery.cli``: the same as the command ``recovery``."""

import sys

from recovery.cli import main

sys.exit(main())
