"""``python -m benchmarks --peers python-peers``, with its other arguments."""

from __future__ import annotations

import sys

from benchmarks.__main__ import main

if __name__ == "__main__":
    sys.argv[1:1] = ["--peers", "python-peers"]
    sys.exit(main())
