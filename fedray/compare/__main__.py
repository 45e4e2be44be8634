"""python -m fedray.compare."""

from fedray import cli
from fedray.compare.comparison import main

if __name__ == "__main__":
    cli.leave(main)
