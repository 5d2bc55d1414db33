"""`test_triton_*.py` needs Triton's interpreter, which must be chosen before Triton is imported:
`test_in_interpreter.py` runs it there in a process of its own."""

from __future__ import annotations

import os

if os.environ.get("TRITON_INTERPRET") != "1":
    collect_ignore_glob = ["test_triton_*.py"]
