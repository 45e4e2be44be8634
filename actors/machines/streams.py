"""What the processes of a run print, on whatever machine: warnings, traces of crashes, and prints of plug-ins."""

from __future__ import annotations

from typing import Any

from fedray.terminal import record

NAME = "fedray"


def listen() -> None:
    """Hand the lines of actors to those who listen (``fedray.terminal.heard``), and not to the terminal.

    Ray sends them to a driver that was started with ``log_to_driver``, and would print them there.
    """
    from ray._private.ray_logging import global_worker_stdstream_dispatcher as lines

    for name in ("ray_print_logs", NAME):
        lines.remove_handler(name)
    lines.add_handler(NAME, hear)


def hear(data: dict[str, Any]) -> None:
    """Take some lines that one process printed, as Ray delivers them."""
    who = data.get("actor_name")
    for line in data.get("lines", ()) if who else ():
        if line.strip():
            record(f"{who} (process {data.get('pid')}, {data.get('ip')}): {line}")
