"""python -m fedray.studies."""

from fedray import cli
from fedray.studies.study import main

if __name__ == "__main__":
    cli.leave(main)
