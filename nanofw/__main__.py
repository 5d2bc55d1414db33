"""`python -m nanofw`."""

from __future__ import annotations

import sys

from nanofw.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
