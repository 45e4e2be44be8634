"""Finished runs, read from a tracking store: their settings, their rounds, and the tables among their artifacts."""

from __future__ import annotations

import contextlib
import csv
import math
import sqlite3
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from fedray.federate import report
from fedray.federate.measures.tasks import TASKS
from fedray.federate.plan import PLUG_IN
from fedray.running import mlflow_store
from fedray.running.drawing.client_figures import UNNAMED
from fedray.running.drawing.figure_style import read_names
from fedray.types import FedRayError, first_line

if TYPE_CHECKING:
    from mlflow.entities import Run
    from mlflow.tracking import MlflowClient

    from fedray.data.readers import Names

FINISHED = "attributes.status = 'FINISHED'"
SECONDS = "time/round_seconds"
UP = "comm/bytes_up"
DOWN = "comm/bytes_down"
CONFIG = "config.json"
PARENTS = ("sweep", "study")  # what the runs above other runs are
T = TypeVar("T")


class FinishedRun(NamedTuple):
    """A finished run."""

    id: str
    name: str
    started: int  # ms since 1970
    settings: Mapping[str, str]  # parameters, by their dotted names
    tags: Mapping[str, str]  # without those that MLflow sets itself
    measured: frozenset[str]  # names of the metrics that the run logged

    def value(self, key: str) -> str | None:
        """A setting, or the tag of that name; None if the run has neither."""
        return self.settings.get(key, self.tags.get(key))

    @property
    def is_trial(self) -> bool:
        """Whether it is a trial of a sweep, which has metrics and no files."""
        return self.tags.get("fedray.kind") == "trial"


class Files(Protocol):
    """What a comparison reads of finished runs."""

    def rounds(self, run: FinishedRun, metrics: Iterable[str]) -> list[dict[str, float]]:
        """One row per round: the given metrics and those that every comparison needs."""
        ...

    def csv_rows(self, run: FinishedRun, name: str) -> list[dict[str, str]]:
        """The rows of a CSV file of the run's result; empty if there is none."""
        ...

    def names(self, run: FinishedRun) -> Names:
        """What the data of the run call their classes and clients; nothing if that cannot be had."""
        ...


class RunStore:
    """An existing MLflow store, opened for reading.

    Raises FedRayError if the store does not exist or does not answer. It is never created.
    """

    def __init__(self, uri: str):
        self.uri = _existing(uri)
        self._client: MlflowClient = self._ask(lambda: mlflow_store.connect(self.uri))

    @property
    def where(self) -> str:
        """The address, without a password."""
        return mlflow_store.shown(self.uri)

    def find(self, experiment: str, study: str | None, sweeps: bool) -> list[FinishedRun]:
        """The finished runs of an experiment, newest first; only those of ``study`` if it is given.

        Trials of a sweep are included only with ``sweeps``, the summary run of a sweep never. Raises FedRayError if
        no run is left.
        """
        found = self._ask(lambda: self._client.get_experiment_by_name(experiment))
        if found is None or found.lifecycle_stage == "deleted":
            names = sorted(each.name for each in self._ask(self._client.search_experiments))
            raise FedRayError(f"--experiment {experiment}: is not in {self.where}; choose from {', '.join(names)}")
        newest_first = ["attributes.start_time DESC"]
        runs = self._ask(lambda: mlflow_store.search(self._client, found.experiment_id, FINISHED, newest_first))
        finished = [run for run in runs if run.data.tags.get("fedray.kind") not in PARENTS]
        candidates = [run for run in finished if sweeps or not _of_sweep(run)]
        kept = [run for run in candidates if study is None or run.data.tags.get("study") == study]
        if not kept:
            raise FedRayError(_nothing_left(experiment, study, finished, candidates))
        return [_finished_run(run) for run in kept]

    def rounds(self, run: FinishedRun, metrics: Iterable[str]) -> list[dict[str, float]]:
        """One row per round, as in metrics.csv: the given metrics and those that every comparison needs."""
        headlines = [f"{kind}/{name}" for name in (*(task.headline for task in TASKS), "ece") for kind in report.NAMES]
        rows: dict[int, dict[str, float]] = {}
        for name in dict.fromkeys([*headlines, SECONDS, UP, DOWN, *metrics]):
            if name not in run.measured:
                continue
            history = self._ask(lambda name=name: self._client.get_metric_history(run.id, name))
            # A resumed run may have logged a round twice; the later value counts.
            for entry in sorted(history, key=lambda entry: (entry.step, entry.timestamp)):
                rows.setdefault(entry.step, {"round": entry.step})[name] = _logged(entry.value)
        return [rows[step] for step in sorted(rows)]

    def csv_rows(self, run: FinishedRun, name: str) -> list[dict[str, str]]:
        """The rows of a CSV file among the run's artifacts; empty if the file cannot be had."""
        try:
            with self._downloaded(run, name) as path, path.open(encoding="utf-8", newline="") as file:
                return list(csv.DictReader(file))
        except Exception:  # each artifact store has its own errors, and a comparison works without the file
            return []

    def names(self, run: FinishedRun) -> Names:
        """What the data of the run call their classes and clients; nothing if that cannot be had."""
        try:
            with self._downloaded(run, CONFIG) as path:
                return read_names(path.parent)
        except Exception:  # as above
            return UNNAMED

    @contextlib.contextmanager
    def _downloaded(self, run: FinishedRun, name: str) -> Iterator[Path]:
        """A file among the run's artifacts; MLflow would leave a copy of each in the folder for temporary files."""
        with tempfile.TemporaryDirectory() as place:
            yield Path(self._client.download_artifacts(run.id, name, place))

    def _ask(self, question: Callable[[], T]) -> T:
        try:
            return question()
        except Exception as error:
            remedy = "start the server or database, or give another --uri"
            raise FedRayError(f"--uri {self.where}: {mlflow_store.reason(error)}; {remedy}") from None


def _logged(value: float) -> float:
    """The value that a run logged: a database keeps the largest double in the place of an infinite one."""
    return math.copysign(math.inf, value) if abs(value) >= sys.float_info.max else value


def _of_sweep(run: Run) -> bool:
    """Whether a run is a trial: the runs of a study have a parent, too."""
    return "mlflow.parentRunId" in run.data.tags and "study" not in run.data.tags


def _existing(uri: str) -> str:
    """The absolute address of a store; raises FedRayError for what is none, such as a SQLite file without one."""
    address = mlflow_store.locate(uri, "--uri")
    if address.database is None:
        return address.uri
    if not address.database.is_file():
        raise FedRayError(
            f"--uri {address.uri}: there is no such file; run python -m fedray.launch first, or give the "
            "--tracking.uri of your runs"
        )
    try:
        address.database.open("rb").close()
    except OSError as error:
        reason = (error.strerror or first_line(error)).lower()
        remedy = "let yourself read it, or give another --uri"
        raise FedRayError(f"--uri {address.uri}: cannot be read ({reason}); {remedy}") from None
    try:  # without MLflow, which would turn any database that it opens into a store
        with contextlib.closing(sqlite3.connect(f"{address.database.as_uri()}?mode=ro", uri=True)) as connection:
            connection.execute("select 1 from experiments limit 1")
    except sqlite3.Error as error:
        raise FedRayError(
            f"--uri {address.uri}: not a store of MLflow ({error}); give the --tracking.uri of your runs"
        ) from None
    return address.uri


def _finished_run(run: Run) -> FinishedRun:
    tags = run.data.tags
    changed = {name: tag for name, tag in tags.items() if name.startswith(PLUG_IN)}  # parameters cannot change
    changed |= {"rounds": tags[report.PLAYED]} if report.PLAYED in tags else {}
    return FinishedRun(
        id=run.info.run_id,
        name=run.info.run_name or run.info.run_id,
        started=run.info.start_time,
        settings=run.data.params | changed,
        tags={name: value for name, value in tags.items() if not name.startswith("mlflow.")},
        measured=frozenset(run.data.metrics),
    )


def _nothing_left(experiment: str, study: str | None, finished: Sequence[Run], candidates: Sequence[Run]) -> str:
    """Why a search found no run, and what to do about it."""
    where = f"--experiment {experiment}"
    if study is not None and candidates:
        names = sorted({run.data.tags["study"] for run in candidates if "study" in run.data.tags})
        remedy = f"choose from {', '.join(names)}" if names else "leave it out"
        return f"--study {study}: no finished run of {where} belongs to it; {remedy}"
    if finished:
        return f"{where}: its {len(finished)} finished runs all belong to sweeps; add --sweeps to compare them"
    return f"{where}: it has no finished runs; run python -m fedray.launch --tracking.experiment {experiment} first"
