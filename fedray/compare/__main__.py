"""python -m fedray.compare."""

import sys

from fedray.compare.comparison import main

if __name__ == "__main__":
    sys.exit(main())
