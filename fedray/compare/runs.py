"""The finished runs of a tracking store: their settings, their rounds, and the tables they left. Reads only."""

from __future__ import annotations

import contextlib
import csv
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from fedray.federate import report
from fedray.run import mlflow_store
from fedray.types import FedRayError

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

PAGE = 500  # runs asked for at once
SECONDS, UP, DOWN = "time/round_seconds", "comm/bytes_up", "comm/bytes_down"
T = TypeVar("T")


class Run(NamedTuple):
    """A finished run."""

    id: str
    name: str
    started: int  # ms since 1970
    settings: Mapping[str, str]  # parameters, by their dotted names
    tags: Mapping[str, str]  # the user's, not MLflow's own
    measured: frozenset[str]  # the metrics that it has

    def value(self, key: str) -> str | None:
        """A setting, or else a tag."""
        return self.settings.get(key, self.tags.get(key))


class Store:
    """An existing MLflow store.

    Raises FedRayError where there is none, or where it does not answer; it is never created.
    """

    def __init__(self, uri: str):
        self.uri = _existing(uri)
        self._client: MlflowClient = self._ask(lambda: mlflow_store.connect(self.uri))

    def find(self, experiment: str, study: str | None, sweeps: bool) -> list[Run]:
        """The finished runs of an experiment, the newest first; of one study where it is named.

        The runs of a sweep only with ``sweeps``, its summary never. Raises FedRayError where nothing is left.
        """
        found = self._ask(lambda: self._client.get_experiment_by_name(experiment))
        if found is None or found.lifecycle_stage == "deleted":
            names = sorted(each.name for each in self._ask(self._client.search_experiments))
            raise FedRayError(f"--experiment {experiment}: is not in {self.where}; choose from {', '.join(names)}")
        finished = self._finished(found.experiment_id)
        alone = [run for run in finished if sweeps or "mlflow.parentRunId" not in run.data.tags]
        kept = [run for run in alone if study is None or run.data.tags.get("study") == study]
        if not kept:
            raise FedRayError(_nothing(experiment, study, finished, alone))
        return [_run(run) for run in kept]

    def _finished(self, experiment_id: str) -> list[Any]:
        runs: list[Any] = []
        token: str | None = None
        while token is None or token:
            page = self._ask(
                lambda token=token: self._client.search_runs(
                    [experiment_id],
                    "attributes.status = 'FINISHED'",
                    max_results=PAGE,
                    order_by=["attributes.start_time DESC"],
                    page_token=token,
                )
            )
            runs += page
            token = page.token or ""
        return [run for run in runs if run.data.tags.get("fedray.kind") != "sweep"]

    def rounds(self, run: Run, metrics: Iterable[str]) -> list[dict[str, float]]:
        """One row per round, as in metrics.csv, of the named metrics and those that every comparison needs."""
        rows: dict[int, dict[str, float]] = {}
        for name in dict.fromkeys([*(f"{kind}/accuracy" for kind in report.NAMES), SECONDS, UP, DOWN, *metrics]):
            if name in run.measured:
                history = self._ask(lambda name=name: self._client.get_metric_history(run.id, name))
                # A resumed run may have logged a round again: the last time counts.
                for entry in sorted(history, key=lambda entry: (entry.step, entry.timestamp)):
                    rows.setdefault(entry.step, {"round": entry.step})[name] = entry.value
        return [rows[step] for step in sorted(rows)]

    def table(self, run: Run, name: str) -> list[dict[str, str]]:
        """The rows of a CSV file that the run left; none where it did not."""
        try:
            path = Path(self._client.download_artifacts(run.id, name))
            with path.open(newline="") as file:
                return list(csv.DictReader(file))
        except Exception:  # of any artifact store; a comparison can do without
            return []

    @property
    def where(self) -> str:
        """The address without a password."""
        return mlflow_store.shown(self.uri)

    def _ask(self, question: Callable[[], T]) -> T:
        try:
            return question()
        except Exception as error:
            cure = "start the server or database, or give another --uri"
            raise FedRayError(f"--uri {self.where}: {mlflow_store.reason(error)}; {cure}") from None


def finished(study: str, uri: str, experiment: str) -> set[str]:
    """Fingerprints of the finished runs of a study in the store; raises FedRayError where it cannot be read."""
    address, _, database = mlflow_store.resolve(uri)
    if database is not None and not database.exists():
        return set()
    query = f"attributes.status = 'FINISHED' AND tags.study = '{study}'"
    done: set[str] = set()
    try:
        with mlflow_store.locked(database):
            client = mlflow_store.connect(address)
        found = client.get_experiment_by_name(experiment)
        token = None
        while found is not None and token != "":
            page = client.search_runs([found.experiment_id], query, page_token=token)
            done |= {run.data.tags.get("config", "") for run in page}
            token = page.token or ""
    except Exception as error:
        where = mlflow_store.shown(address)
        raise FedRayError(
            f"--tracking.uri {where}: {mlflow_store.reason(error)}. {mlflow_store.remedy(address)}"
        ) from None
    return done


def _existing(uri: str) -> str:
    """The absolute address of a store; raises FedRayError where a SQLite file is none."""
    try:
        address, _, database = mlflow_store.resolve(uri)
    except FedRayError:
        raise FedRayError(
            f"--uri {mlflow_store.shown(uri)}: not the address of a database or MLflow server; give "
            "sqlite:///FILE.db or http://HOST:PORT"
        ) from None
    if database is None:
        return address
    if not database.is_file():
        raise FedRayError(
            f"--uri {address}: there is no such file; run python -m fedray.launch first, or give the --tracking.uri "
            "of your runs"
        )
    try:  # MLflow would make a store of any database that it opens
        with contextlib.closing(sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True)) as connection:
            connection.execute("select 1 from experiments limit 1")
    except sqlite3.Error as error:
        raise FedRayError(f"--uri {address}: not a store of MLflow ({error}); give the one of your runs") from None
    return address


def _run(run: Any) -> Run:
    tags = {name: value for name, value in run.data.tags.items() if not name.startswith("mlflow.")}
    info, data = run.info, run.data
    name = info.run_name or info.run_id
    return Run(info.run_id, name, info.start_time, dict(data.params), tags, frozenset(data.metrics))


def _nothing(experiment: str, study: str | None, finished: Sequence[Any], alone: Sequence[Any]) -> str:
    where = f"--experiment {experiment}"
    if study is not None and alone:
        names = sorted({run.data.tags["study"] for run in alone if "study" in run.data.tags})
        remedy = f"choose from {', '.join(names)}" if names else "leave it out"
        return f"--study {study}: no finished run of {where} belongs to it; {remedy}"
    if finished:
        return f"{where}: its {len(finished)} finished runs all belong to sweeps; add --sweeps to compare them"
    return f"{where}: it has no finished runs; run python -m fedray.launch --tracking.experiment {experiment} first"
