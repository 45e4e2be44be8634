"""Where a run is recorded: nowhere, or in MLflow. Only the driver logs; a lost store never stops training.

Metrics are buffered with their own timestamps and sent in batches. MLflow ignores a metric that it holds
already (same name, step, timestamp, value), so a batch whose answer got lost is safely sent again.
"""

from __future__ import annotations

import contextlib
import re
import shlex
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from fedray.federate import report
from fedray.federate.uncertainty.summary import TRACKED
from fedray.running import mlflow_store
from fedray.terminal import say
from fedray.types import FedRayError

if TYPE_CHECKING:
    from mlflow.entities import Metric
    from mlflow.tracking import MlflowClient

    from fedray.running.published.publish import Finished

Ending = Literal["FINISHED", "FAILED", "KILLED"]

FLUSH_SECONDS = 2.0
MAX_METRICS = 60  # beside those of the result
SYSTEM = "system/"  # MLflow shows metrics of such names in a tab of their own, and not among the charts
KIND, TRAINING = "mlflow.experimentKind", "custom_model_development"  # of an experiment: not about language models
OFF = "--tracking.uri none"
PATIENCE = 10.0  # the pause after a failed delivery, in units of its duration: a hanging store costs <= 1/10


class Tracker(Protocol):
    """A record of one run."""

    @property
    def run_id(self) -> str | None:
        """The identity of the run in the store; None where nothing is recorded."""

    @property
    def uri(self) -> str:
        """The store's address, absolute."""
        ...

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record the metrics of one round (step = round), once; never raises for a store that fails."""

    def tag(self, name: str, value: str) -> None:
        """Set a tag of the run; never raises for a store that fails."""

    def sample(self, values: Mapping[str, float]) -> None:
        """Record at once what machines do now; raises what the store raises. Any thread may call it."""

    def flush(self) -> bool:
        """Send what is buffered; False where the store fails."""
        ...

    def finish(self, status: Ending, artifacts: Path | None = None, ended: float | None = None) -> bool:
        """Send what is left and the files below a folder, and close; False where the store refused.

        ``ended`` is the Unix time in seconds at which the run ended, by default now.
        """
        ...

    def publish(self, finished: Finished) -> bool:
        """Record the page and the model of a finished run, beside what :meth:`finish` takes; never raises.

        False where it could not be done.
        """
        ...

    def hint(self) -> str:
        """Where to look: a command to paste, or an address."""
        ...


class NullTracker:
    """Records nothing."""

    run_id: str | None = None
    uri = "none"

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Forget the metrics."""

    def tag(self, name: str, value: str) -> None:
        """Forget the tag."""

    def sample(self, values: Mapping[str, float]) -> None:
        """Forget the sample."""

    def flush(self) -> bool:
        """Nothing is left."""
        return True

    def finish(self, status: Ending, artifacts: Path | None = None, ended: float | None = None) -> bool:
        """Nothing can be lost: always True."""
        return True

    def publish(self, finished: Finished) -> bool:
        """Nothing can be lost: always True."""
        return True

    def hint(self) -> str:
        """That there is nothing to see."""
        return f"tracking is off ({OFF})"


class MLflowTracker:
    """One MLflow run, opened at construction; ``run_id`` continues one instead of creating it.

    Raises FedRayError, in seconds, when the URI is not one or its store is down or cannot be written.
    """

    def __init__(
        self,
        uri: str,
        experiment: str,
        run_name: str,
        params: Mapping[str, Any],
        tags: Mapping[str, str],
        warn: Callable[[str], object] = lambda text: say(f"warning: {text}"),
        run_id: str | None = None,
    ) -> None:
        self._uri, artifacts, database = mlflow_store.locate(uri)
        self._held: set[tuple[str, int]] = set()  # (metric, step) that a continued run holds already
        self._ended: int | None = None  # when a continued run was finished, Unix time in ms
        self._where = mlflow_store.shown(self._uri)
        self._warn = warn
        self._warned = False
        self._buffer: list[Metric] = []
        self._rows: list[Mapping[str, float]] = []  # what was logged since round 1, from which averages are taken
        self._names: set[str] = set()  # of the metrics of the run
        self._full = False  # whether there were more of them than a run may have
        self._next_flush = 0.0
        mlflow_store.prepare()  # MLflow reads some of it as it is imported
        try:
            from mlflow.entities import Param

            with mlflow_store.locked(database):
                if database:
                    mlflow_store.make(database)
                self._client = mlflow_store.connect(self._uri)
                self._experiment = _experiment(self._client, experiment, artifacts)
                if run_id is None:
                    run = self._client.create_run(self._experiment, run_name=run_name, tags=dict(tags))
                else:
                    run = self._client.get_run(run_id)
                    self._held = _history(self._client, run)
                    self._names = {name for name in run.data.metrics if not name.startswith(SYSTEM)}
                    if run.info.status == "FINISHED":
                        self._ended = run.info.end_time
                    else:
                        self._client.update_run(run_id, "RUNNING")
            self.run_id: str = run.info.run_id
            self._began = run.info.start_time  # Unix time in ms
            entries = [Param(_key(name), str(value)) for name, value in params.items()]
            self._client.log_batch(self.run_id, params=entries, synchronous=True)
        except FedRayError:
            raise
        except Exception as err:
            why = f"{mlflow_store.reason(err)}. {mlflow_store.remedy(self._uri)}, or {OFF}"
            raise FedRayError(f"--tracking.uri {self._where}: {why}") from None

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record the metrics of one round (step = round), each once; sends what is buffered every two seconds."""
        from mlflow.entities import Metric

        from fedray.running.published.page import averages

        now = int(time.time() * 1000)
        if step == 1 or self._rows:  # the rounds before a resumed one are not known here
            self._rows = [*(() if step == 1 else self._rows), metrics]  # a trial that is begun again logs all again
        values = {_key(name): value for name, value in (dict(metrics) | averages(self._rows)).items()}
        fresh = {name: value for name, value in values.items() if (name, step) not in self._held and self._fits(name)}
        self._held |= {(name, step) for name in fresh}
        self._buffer += [Metric(name, float(value), now, step) for name, value in fresh.items()]
        if time.monotonic() >= self._next_flush:
            self.flush()

    @property
    def uri(self) -> str:
        """The store's address, absolute."""
        return self._uri

    def tag(self, name: str, value: str) -> None:
        """Set a tag; a store that fails is reported with the next metrics."""
        with contextlib.suppress(Exception):
            self._client.set_tag(self.run_id, name, value)

    def sample(self, values: Mapping[str, float]) -> None:
        """Log what machines do now, under the names of MLflow's system metrics; a step is a second of the run."""
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        step = (now - self._began) // 1000
        entries = [Metric(_key(f"{SYSTEM}{name}"), value, now, step) for name, value in values.items()]
        self._client.log_batch(self.run_id, metrics=entries, synchronous=True)

    def flush(self) -> bool:
        """Send the buffer now; False, with one warning per run and the buffer kept, where the store fails."""
        start = time.monotonic()
        try:
            self._send()
        except Exception as err:
            if not self._warned:
                self._warned = True
                kept = "training goes on, the metrics are kept and sent again later"
                self._warn(f"MLflow at {self._where} failed ({mlflow_store.reason(err)}); {kept}")
        now = time.monotonic()
        self._next_flush = now + max(FLUSH_SECONDS, PATIENCE * (now - start) if self._buffer else 0.0)
        return not self._buffer

    def finish(self, status: Ending, artifacts: Path | None = None, ended: float | None = None) -> bool:
        """Send what is buffered, set the terminal status, upload the files below ``artifacts``.

        The states of a result are left to :meth:`publish`, which hands them over with the model. A run that the store
        holds as finished keeps its end time; else it is ``ended`` (Unix time), by default now.
        Never raises: False, after a warning with the remedy, where the store did not take all of it.
        """
        try:
            self._send()
            milliseconds = self._ended or (None if ended is None else int(ended * 1000))
            self._client.set_terminated(self.run_id, status, milliseconds)
            if artifacts is not None:  # last, because it is slowest; a closed run still takes files
                from fedray.running.published.model import STATES

                for path in sorted(artifacts.iterdir()):
                    if path.name not in STATES:
                        self._client.log_artifact(self.run_id, str(path))
        except Exception as err:
            kept = f"; it is complete in {artifacts}" if artifacts else ""
            text = f"did not take all of the run ({mlflow_store.reason(err)}){kept}"
            self._warn(f"MLflow at {self._where} {text}. {mlflow_store.remedy(self._uri)}, or {OFF}")
            return False
        return True

    def publish(self, finished: Finished) -> bool:
        """Log the description, the datasets, the table of clients and the model; False, after a warning, where not."""
        from fedray.running.published.publish import publish

        try:
            publish(self._client, self._experiment, self.run_id, finished)
        except FedRayError as error:  # a network or a plug-in that exists in this program only
            self._warn(f"MLflow at {self._where} has no model of this run: {error}")
            return False
        except Exception as err:
            text = f"did not take the page or the model of the run ({mlflow_store.reason(err)})"
            self._warn(f"MLflow at {self._where} {text}; the result is complete in {finished.folder}")
            return False
        return True

    def hint(self) -> str:
        """The command that opens the run's charts, or its address on a server."""
        if self._uri.startswith("http"):
            return f"{self._where}/#/experiments/{self._experiment}/runs/{self.run_id}?workflowType=machine_learning"
        # MLflow's own start page is an empty one about language models.
        page = f"#/experiments/{self._experiment}/runs?workflowType=machine_learning&compareRunsMode=CHART"
        command = f"mlflow ui --backend-store-uri {shlex.quote(self._where)}"
        return f"{command}\nthen open http://127.0.0.1:5000/{page}"

    def _fits(self, name: str) -> bool:
        """Whether the run may have this metric: the page draws a chart of each, and is slow with more.

        What the result adds at the end, which tables are made of, always has a place.
        """
        kind, _, measure = name.partition("/")
        if kind == report.AVERAGED or measure in TRACKED:
            return True
        if name in self._names or len(self._names) < MAX_METRICS:
            self._names.add(name)
            return True
        if not self._full:
            text = f"a run in MLflow has at most {MAX_METRICS} metrics; the others, from {name} on, are in metrics.csv"
            self._warn(f"{text} and summary.json")
        self._full = True
        return False

    def _send(self) -> None:
        # MLflow cuts it into batches of 1000 (and cuts long parameters) itself.
        self._client.log_batch(self.run_id, metrics=self._buffer, synchronous=True)
        self._buffer.clear()


def git_commit() -> str | None:
    """The commit of the checkout of FedRay, else of the current folder, '+dirty' if changed; None outside."""
    root = Path(__file__).resolve().parents[2]
    # An installed FedRay may lie in a virtual environment inside somebody else's checkout: not its commit.
    folder = root if (root / ".git").exists() else Path.cwd()
    try:
        commit = _git(folder, "rev-parse", "--short=12", "HEAD")
        return f"{commit}+dirty" if _git(folder, "status", "--porcelain") else commit
    except (OSError, subprocess.SubprocessError):
        return None


def _git(folder: Path, *args: str) -> str:
    command = ["git", "-C", str(folder), *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=5, check=True).stdout.strip()


def _history(client: MlflowClient, run: Any) -> set[tuple[str, int]]:
    """(metric, step) of everything that a run holds of its rounds."""
    run_id = run.info.run_id
    names = [name for name in run.data.metrics if not name.startswith(SYSTEM)]
    return {(name, m.step) for name in names for m in client.get_metric_history(run_id, name)}


def _experiment(client: MlflowClient, name: str, artifacts: str | None) -> str:
    from mlflow.exceptions import MlflowException

    found = client.get_experiment_by_name(name)
    if found is None:
        try:
            return client.create_experiment(name, artifact_location=artifacts, tags={KIND: TRAINING})
        except MlflowException:  # somebody else on the server may have created it just now
            found = client.get_experiment_by_name(name)
            if found is None:
                raise
    if found.lifecycle_stage == "deleted":
        restore = f"mlflow experiments restore --experiment-id {found.experiment_id}"
        raise FedRayError(f"--tracking.experiment {name}: it was deleted; choose another or run: {restore}")
    if KIND not in found.tags:
        client.set_experiment_tag(found.experiment_id, KIND, TRAINING)
    return found.experiment_id


def _key(name: str) -> str:
    # MLflow would refuse a whole batch for one such name, at every try.
    return re.sub(r"[^\w\-. :/]", "_", name)[:250]
