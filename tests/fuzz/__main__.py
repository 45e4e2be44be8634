"""python -m tests.fuzz --inputs N --seed S: read N damaged files and count the answers."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.fuzz.inputs import play


def main() -> int:
    """Play and print; 0 where every answer was a value or a FedRayError."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    began = time.monotonic()
    found = play(Path(tempfile.mkdtemp()) / "fuzz", options.inputs, options.seed)
    for answer, count in found.most_common():
        print(f"{count:>8}  {answer}")
    print(f"{options.inputs} inputs, {time.monotonic() - began:.0f} s")
    return 0 if set(found) <= {"read", "refused"} else 1


if __name__ == "__main__":
    sys.exit(main())
