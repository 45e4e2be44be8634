"""python -m fedray.studies."""

import sys

from fedray.studies.study import main

if __name__ == "__main__":
    sys.exit(main())
