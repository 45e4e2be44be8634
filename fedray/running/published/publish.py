"""A finished run, handed to MLflow: its page, its datasets, its model with linked metrics, and a registered version."""

from __future__ import annotations

import json
import re
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit
from urllib.request import url2pathname

from fedray import registry
from fedray.federate import report
from fedray.federate.plan import Plan
from fedray.federate.storage.checkpoint_files import link
from fedray.running.finished import load
from fedray.running.published import model, page
from fedray.types import FedRayError, require

if TYPE_CHECKING:
    from mlflow.entities import DatasetInput, LoggedModel
    from mlflow.tracking import MlflowClient

RESERVED = "latest"  # an alias that MLflow keeps for itself


class Finished(NamedTuple):
    """A run with its result, and the name under which its model is registered; empty: it is not."""

    plan: Plan
    folder: Path
    register: str = ""


class Registration(NamedTuple):
    """A name of MLflow's model registry, and the alias that the new version takes over."""

    name: str
    alias: str


def registration(asked: str, algorithm: str) -> Registration:
    """The name and the alias of NAME or NAME@ALIAS; the alias is by default the name of the algorithm.

    Raises FedRayError for what MLflow would refuse.
    """
    name, _, alias = asked.partition("@")
    alias = alias or re.sub(r"[^\w-]", "-", algorithm)
    reason, remedy = "a name has no / : and @", "give a name such as digits, or digits@champion"
    require(re.fullmatch(r"[^/:@]+", name) is not None, "register", asked, reason, remedy)
    usable = re.fullmatch(r"[\w-]+", alias) and alias.lower() != RESERVED and not re.fullmatch(r"[vV]\d+", alias)
    reason = "an alias is one word of letters, digits, - and _, and neither latest nor a version such as v1"
    require(bool(usable), "register", asked, reason, remedy)
    return Registration(name, alias)


def publish(client: MlflowClient, experiment: str, run_id: str, finished: Finished) -> None:
    """Give a run its description, its datasets, the table of its clients and its model; once, if called again.

    Raises what the store raises, and FedRayError where the models cannot be loaded from the result's folder.
    """
    plan, folder, register = finished
    summary = json.loads((folder / "summary.json").read_text())
    with tempfile.TemporaryDirectory() as place:
        shown = page.previews(folder, Path(place))
        client.log_artifacts(run_id, place, page.PREVIEWS)
    note = page.description(plan, summary, shown, run_id)
    client.set_tag(run_id, page.NOTE, note)
    datasets = page.datasets(plan)
    client.log_inputs(run_id, datasets)
    tables = client.get_run(run_id).data.tags.get("mlflow.loggedArtifacts", "")
    if (table := page.client_table(folder)) and page.TABLE not in tables:  # it would be appended to the first
        client.log_table(run_id, table, page.TABLE)
    model_id = _logged_model(client, experiment, run_id)
    if model_id is None:
        test = next(each for each in datasets if each.tags[0].value == page.TEST)
        try:
            model_id = _log_model(client, experiment, run_id, finished, summary, test)
        except FedRayError:  # without a model, the states are files of the run
            for state in _states(folder):
                client.log_artifact(run_id, str(state))
            raise
    if register:
        _register(client, registration(register, registry.algorithm_name(plan.cfg.algorithm)), model_id, run_id)


def _logged_model(client: MlflowClient, experiment: str, run_id: str) -> str | None:
    """The model of the run that the store has already, whole; None if an upload has failed or there was none."""
    from mlflow.entities import LoggedModelStatus

    logged = client.search_logged_models([experiment], f"source_run_id = '{run_id}'")
    return next((each.model_id for each in logged if each.status == LoggedModelStatus.READY), None)


def _log_model(
    client: MlflowClient,
    experiment: str,
    run_id: str,
    finished: Finished,
    summary: dict[str, Any],
    test: DatasetInput,
) -> str:
    """Log the models of a run as one, with the measures of its result; the identity of it."""
    from mlflow.entities import LoggedModelOutput, Metric

    plan, folder, _ = finished
    run = load(folder)
    name = registry.algorithm_name(plan.cfg.algorithm)
    described = {"algorithm": name, "clients": str(plan.clients), "dataset": plan.cfg.data.name}
    logged = client.create_logged_model(experiment, name, run_id, params=described, model_type="federated posteriors")
    try:
        with tempfile.TemporaryDirectory() as place:
            saved = Path(place, "model")
            data = model.save(folder, run, logged.model_id, saved)
            client.log_model_artifacts(logged.model_id, str(saved))
        for state in _states(folder):
            _hand_over(client, logged, state, data)
    except BaseException:
        client.finalize_logged_model(logged.model_id, "FAILED")
        raise
    client.finalize_logged_model(logged.model_id, "READY")
    client.log_outputs(run_id, [LoggedModelOutput(logged.model_id, plan.cfg.rounds)])
    now, about = int(time.time() * 1000), test.dataset
    measures = report.averaged(plan, summary)
    client.log_batch(
        run_id,
        [
            Metric(key, value, now, plan.cfg.rounds, logged.model_id, about.name, about.digest, run_id)
            for key, value in measures.items()
        ],
        synchronous=True,
    )
    return logged.model_id


def _states(folder: Path) -> list[Path]:
    """The states of a result: files, or a folder of them."""
    return [folder / state for state in model.STATES if (folder / state).exists()]


def _hand_over(client: MlflowClient, logged: LoggedModel, state: Path, data: str) -> None:
    """Put a state among the files of a model: on this machine by links, for a result is replaced and never changed."""
    location = urlsplit(logged.artifact_location)
    if location.scheme == "file":
        target = Path(url2pathname(location.path), data, state.name)
        for source in filter(Path.is_file, state.rglob("*") if state.is_dir() else [state]):
            place = target / source.relative_to(state)
            place.parent.mkdir(parents=True, exist_ok=True)
            link(source, place)
    elif state.is_dir():
        client.log_model_artifacts(logged.model_id, str(state), f"{data}/{state.name}")
    else:
        client.log_model_artifact(logged.model_id, str(state), data)


def _register(client: MlflowClient, wanted: Registration, model_id: str, run_id: str) -> None:
    """Make the model a version of a registered one, which the alias means from now on; once, if called again."""
    from mlflow.exceptions import MlflowException

    if any(each.name == wanted.name for each in client.search_model_versions(f"run_id = '{run_id}'")):
        return
    try:
        client.create_registered_model(wanted.name)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    # A server looks models:/ up in itself; a client of a database would look in its default store.
    served = client.tracking_uri.startswith("http")
    source = f"models:/{model_id}" if served else client.get_logged_model(model_id).artifact_location
    version = client.create_model_version(wanted.name, source, run_id, model_id=model_id)
    client.set_registered_model_alias(wanted.name, wanted.alias, version.version)
