"""python -m tests.chaos.driver TICKETS PACE ARGV...: the launch command, with clients that fail on demand."""

import sys
import time
from pathlib import Path

from fedray import launch
from fedray.federate import planning
from tests.chaos.faults import faulty


def main() -> int:
    tickets, pace, *argv = sys.argv[1:]
    honest = planning.make_plan

    def make_plan(*args, **kwargs):
        made = faulty(honest(*args, **kwargs), Path(tickets))
        select = made.selection.select

        def slowly(*state):
            time.sleep(float(pace))  # rounds long enough to be hit in the middle
            return select(*state)

        return made._replace(selection=made.selection._replace(select=slowly))

    planning.make_plan = make_plan
    return launch.main(argv)


if __name__ == "__main__":
    sys.exit(main())
