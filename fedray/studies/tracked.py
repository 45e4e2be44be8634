"""What a tracking store knows of a study: which of its runs are finished, and the run above them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from fedray.compare.runs import FINISHED
from fedray.running import mlflow_store
from fedray.types import FedRayError

if TYPE_CHECKING:
    from mlflow.entities import Run


def finished(study: str, uri: str, experiment: str) -> dict[str, str]:
    """The commits that played the finished runs of a study, by their fingerprints; empty if the store is new.

    Raises FedRayError if the store cannot be read.
    """
    runs = _of_study(study, uri, experiment, FINISHED)
    return {tags["config"]: tags.get("git_commit", "unknown") for run in runs if "config" in (tags := run.data.tags)}


class Parent(NamedTuple):
    """The run above those of a study."""

    run_id: str
    cut_off: bool  # it did not end by itself, as that of a study that was stopped at its table


def parent_of(study: str, uri: str, experiment: str) -> Parent | None:
    """The run above those of a study; None if the study has not been played. Raises as :func:`finished`."""
    runs = _of_study(study, uri, experiment, "tags.`fedray.kind` = 'study'")
    return Parent(runs[0].info.run_id, runs[0].info.status in ("KILLED", "RUNNING")) if runs else None


def _of_study(study: str, uri: str, experiment: str, query: str) -> list[Run]:
    address = mlflow_store.locate(uri)
    if address.database is not None and not address.database.exists():
        return []
    try:
        with mlflow_store.locked(address.database):
            client = mlflow_store.connect(address.uri)
        found = client.get_experiment_by_name(experiment)
        if found is None:
            return []
        return mlflow_store.search(client, found.experiment_id, f"{query} AND tags.study = '{study}'")
    except Exception as error:
        where = mlflow_store.shown(address.uri)
        remedy = mlflow_store.remedy(address.uri)
        raise FedRayError(f"--tracking.uri {where}: {mlflow_store.reason(error)}. {remedy}") from None
