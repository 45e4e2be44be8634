"""The models of a run as one MLflow model (pyfunc): ``client`` and ``draws`` are parameters of a prediction.

Its artifacts are the files of the result that :func:`fedray.load` reads: numbers in safetensors, and no pickles.
MLflow calls :func:`_load_pyfunc`, as its loader modules do.
"""

from __future__ import annotations

import importlib.metadata
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import fedray
from fedray.federate.uncertainty import summary as uncertain
from fedray.running import finished
from fedray.running.predictor import Prediction, Predictor, RealPrediction
from fedray.running.writer import PERSONAL
from fedray.types import FedRayError

if TYPE_CHECKING:
    from mlflow.models import ModelSignature

SMALL = ("config.json", "partition.npz", "summary.json", uncertain.CLIENTS)  # what :func:`fedray.load` reads besides
STATES = ("global.safetensors", f"{PERSONAL}.safetensors", PERSONAL)  # of which the last two exclude each other
DATA = "data"  # MLflow's folder for what a loader module reads
PACKAGES = ("torch", "numpy", "safetensors", "mlflow")


class ServedModels:
    """What MLflow calls: the models of a run behind one ``predict``."""

    def __init__(self, run: Predictor):
        self._run = run

    def predict(self, model_input: Any, params: dict[str, Any] | None = None) -> list[dict[str, Any]]:
        """One record per input [B, ...]: of labels, the label, its name if it has one, the probabilities, the entropy
        and the mutual information in nats, and the conformal set (None where none was calibrated); of real
        targets, the mean and standard deviations.

        ``params`` are ``client`` (a number or a name; none: the global model), ``draws`` (how many posterior draws are
        averaged; none: as in the run) and ``seed`` (of these draws). Raises MlflowException for what cannot be
        answered, which the server of MLflow replies as an error of the request.
        """
        from mlflow.exceptions import MlflowException

        try:
            asked = params or {}
            if self._run.plan.names.features:
                model_input = _columns(model_input)
            client = _client(asked.get("client"), self._run)
            found = self._run.predict(model_input, client, _draws(asked.get("draws")), asked.get("seed") or 0)
            return _records(found, self._run)
        except FedRayError as error:
            raise MlflowException.invalid_parameter_value(str(error)) from None


def _load_pyfunc(path: str) -> ServedModels:
    """The models in the data folder of an MLflow model; raises FedRayError as :func:`fedray.load`."""
    return ServedModels(finished.load(path))


def _columns(asked: Any) -> Any:
    """A table, where the columns of one came by their names: JSON's ``{"a": [...]}`` or ``[{"a": ...}, ...]``; raises
    FedRayError for columns that are none."""
    import pandas

    if isinstance(asked, list) and asked and all(isinstance(row, dict) for row in asked):
        asked = {name: np.array([row.get(name, np.nan) for row in asked]) for name in asked[0]}
    if not isinstance(asked, dict):
        return asked
    try:
        return pandas.DataFrame(asked)
    except ValueError:  # single values; lists of different lengths
        raise FedRayError("x: its columns are not lists of one length; give each a value for every row") from None


def _client(asked: str | None, run: Predictor) -> int | str | None:
    """The client that a text means; an unknown one as it was given."""
    found = None if asked is None else run.meant(asked)
    return asked if found is None else run.called(found)


def _draws(asked: int | None) -> int | None:
    if asked is not None and asked < 0:
        raise FedRayError(f"draws={asked}: is negative; give a number of posterior draws, 0 for the mean weights")
    return asked


def _records(found: Prediction | RealPrediction, run: Predictor) -> list[dict[str, Any]]:
    """A prediction as a record per input."""
    real = isinstance(found, RealPrediction)
    if not (found.sd if real else found.entropy).isfinite().all():
        raise FedRayError("the model predicts NaN or infinity: it has diverged; train it with lower learning rates")
    if real:
        columns = found.columns()
    else:
        known = found.columns(run.plan.names.classes)
        columns = {**known, "set": known.get("set", [None] * len(found.entropy))}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def signature(run: Predictor) -> ModelSignature:
    """Inputs [B, ...] in the dataset's own units, the fields of a record, and the parameters of a prediction.

    Inputs of a run on a table are left to :meth:`Predictor.predict`: MLflow would pass a DataFrame's columns on without
    their names where the signature is a tensor's, and take neither arrays nor whole numbers where it is of columns.
    """
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, DataType, ParamSchema, ParamSpec, Schema, TensorSpec
    from mlflow.types.schema import Array

    plan = run.plan
    tensor = Schema([TensorSpec(np.dtype("float32"), (-1, *plan.model.input_shape))])
    if plan.target is not None:
        outputs = [ColSpec(DataType.double, name) for name in RealPrediction._fields if name != "draws"]
    else:
        outputs = [ColSpec(DataType.long, "label")]
        outputs += [ColSpec(DataType.string, "name")] if plan.names.classes else []
        outputs += [ColSpec(Array(DataType.double), "probabilities")]
        outputs += [ColSpec(DataType.double, name) for name in ("entropy", "mutual_information")]
        outputs += [ColSpec(Array(DataType.long), "set", required=False)]
    params = [
        ParamSpec("client", DataType.string, None),
        ParamSpec("draws", DataType.long, None),
        ParamSpec("seed", DataType.long, 0),
    ]
    return ModelSignature(None if plan.names.features else tensor, Schema([*outputs]), ParamSchema(params))


def save(folder: Path, run: Predictor, model_id: str, destination: Path) -> str:
    """Write the MLflow model of the result in ``folder``, but for its states; returns where among its files these go.

    They are large, and are uploaded from where they lie. The example of an input is zeros.
    """
    import mlflow.pyfunc
    import pandas
    from mlflow.models import Model

    params = {"client": "0"} if run.plan.personal else {"seed": 0}
    zeros = np.zeros((1, *run.plan.model.input_shape), np.float32)
    features = run.plan.names.features
    example = pandas.DataFrame(zeros, columns=list(features)) if features else zeros, params
    with tempfile.TemporaryDirectory() as place:
        small = Path(place, "run")
        small.mkdir()
        for name in SMALL:
            if (folder / name).exists():
                shutil.copy(folder / name, small / name)
        mlflow.pyfunc.save_model(
            path=str(destination),
            loader_module=__name__,
            data_path=str(small),
            signature=signature(run),
            input_example=example,
            pip_requirements=requirements(),  # else MLflow loads the model in a process of its own and guesses
            mlflow_model=Model(model_id=model_id),
        )
    return f"{DATA}/run"


def requirements() -> list[str]:
    """The packages that a prediction needs, at the versions that made the model; they keep MLflow from guessing."""
    return [f"fedray=={fedray.__version__}"] + [f"{name}=={importlib.metadata.version(name)}" for name in PACKAGES]
