"""The log of a run: what was said of it, every round and failure, and what its processes printed, with the time."""

from __future__ import annotations

import contextlib
import threading
from datetime import datetime
from pathlib import Path

FILE = "log.txt"


class Log:
    """Lines that are kept in memory until the run has a folder, for a run that is refused leaves none.

    From then on every line is in the file when ``write`` returns. A resumed run goes on in the same file.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # what actors print arrives in another thread
        self._early: list[str] = []
        self._path: Path | None = None

    def open(self, folder: Path) -> None:
        """Go on in a file of this folder, with all that was written before."""
        with self._lock:
            self._path = folder / FILE
            self._append("".join(self._early))
            self._early.clear()

    def write(self, text: str) -> None:
        """Add a text; its later lines are indented."""
        time = datetime.now().isoformat(" ", "seconds")
        entry = f"{time}  {text.rstrip().replace(chr(10), f'{chr(10)}    ')}\n"
        with self._lock:
            if self._path is None:
                self._early.append(entry)
            else:
                self._append(entry)

    def _append(self, text: str) -> None:
        with contextlib.suppress(OSError):  # a full disk must not cost the run
            assert self._path is not None
            with self._path.open("a", encoding="utf-8") as file:
                file.write(text)
