"""The folder of a finished run, read as its models."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from fedray import registry
from fedray.arrays.tensor_files import load_rows, load_tree
from fedray.config import override
from fedray.config.decode import decode, fits, record, refuse_damage
from fedray.data import loading, own, partition, scaling
from fedray.data.digests import LAYERS, of_examples, of_layers
from fedray.data.given import given
from fedray.data.readers import Dataset, Names
from fedray.federate.messages import Saved
from fedray.federate.plan import Plan
from fedray.federate.planning import changed, programs
from fedray.federate.rounds import Snapshot
from fedray.federate.storage.checkpoint_files import as_file
from fedray.federate.uncertainty import summary as uncertain
from fedray.nets import network
from fedray.nets.densities import Density
from fedray.nets.model import FLOAT_BYTES, Model, check_memory, own_module
from fedray.running.folder.notes import experiment_of
from fedray.running.predictor import Predictor
from fedray.running.writer import PERSONAL
from fedray.terminal import say
from fedray.types import FedRayError

MAX_CLASSES = 2**20


def load(folder: str | Path, model: nn.Module | None = None, data: Any = None) -> Predictor:
    """The predictor of a finished run.

    ``model`` is the network, ``data`` are the examples of a run that was given these from Python, or the file of its
    examples at another place; examples only serve methods whose personal models train on them before they predict.

    Raises FedRayError naming the file that is missing, damaged or of another run, and for other examples.
    """
    folder = Path(folder).expanduser()
    with refuse_damage(f"{folder / 'config.json'} cannot be read", "give the folder of a finished run"):
        described = decode((folder / "config.json").read_bytes())
        plan = _plan(folder, described, model)
    if data is not None:
        given = _given(data, plan)
        plan = plan._replace(given=given)
        if plan.examples and plan.examples != of_examples(plan.dataset()):
            raise FedRayError(f"{folder}: data are not the examples of this run; give those, or leave `data` out")
    with refuse_damage(f"{folder}: its models cannot be read", "run it again"):
        _check_size(folder, plan)
        server = plan.initial_server()
        client = plan.algorithm.client_init(plan.context, server)
        if (folder / PERSONAL).is_dir():
            clients = _files(folder / PERSONAL, plan)
        else:
            clients = load_rows(folder / f"{PERSONAL}.safetensors", client, plan.clients)
        snapshot = Snapshot(load_tree(folder / "global.safetensors", server), clients)
    return Predictor(plan, snapshot, thresholds(folder))


def _given(data: Any, plan: Plan) -> Dataset:
    """The examples of a run: the caller's, or those of a file."""
    if not isinstance(data, str | Path):
        return given(data)
    cfg = override(plan.cfg.data, {"name": str(data)})
    return loading.load(cfg, plan.model.classes, plan.names.classes)


def thresholds(folder: Path) -> dict[int | None, float]:
    """The thresholds of the conformal sets of a run; empty of one without an uncertainty report.

    Of a client its own, or the federated one where it had too few examples. Raises FedRayError for damaged files.
    """
    if not (folder / uncertain.CLIENTS).exists():
        return {}
    with refuse_damage(f"{folder / uncertain.CLIENTS} cannot be read", "run it again with --uncertainty"):
        with (folder / uncertain.CLIENTS).open(encoding="utf-8", newline="") as file:
            rows = [row for row in csv.DictReader(file) if row["model"] == "personal"]
        found: dict[int | None, float] = {int(row["client"]): float(row["thr_threshold"]) for row in rows}
    with refuse_damage(f"{folder / 'summary.json'} cannot be read", "run it again with --uncertainty"):
        measured = decode((folder / "summary.json").read_bytes())["uncertainty"]["global"]
        if measured is not None:
            found[None] = float(measured.get("thr_threshold_federated", math.inf))
        return found


def _files(folder: Path, plan: Plan) -> Saved:
    """The clients' states in the files of a folder; raises what damage leads to."""
    files = tuple(as_file(entry) for entry in decode((folder / "files.json").read_bytes()))
    return Saved(str(folder), plan.rounds, files)


def _plan(folder: Path, described: Any, own_model: nn.Module | None) -> Plan:
    """The plan of a result's config.json and partition; raises what damage leads to."""
    plug_ins = tuple(described.get("plug_ins", ()))
    registry.plug_in_again(plug_ins, str(folder))
    cfg = experiment_of(described["algorithm"], described["experiment"])
    shape = described["data"]
    inputs = shape["input_shape"]
    if not fits(inputs, list[int]) or not fits(shape["classes"], int) or not 0 < shape["classes"] <= MAX_CLASSES:
        raise ValueError(f"input_shape {inputs} or classes {shape['classes']} cannot be")
    target = scaling.from_json(shape.get("target"))  # older runs have none
    density = network.density(cfg.model, target is not None)
    digests = dict(described.get("digests", {}))  # older runs have none of a file
    if cfg.model.name == own.GIVEN:
        model = _callers_network(folder, own_model, shape, density, digests.get(LAYERS))
    else:
        layers = registry.pick(registry.networks(), "`model.name`", cfg.model.name)
        model = network.build(layers, cfg.model, tuple(inputs), shape["classes"], density)
    algorithm = registry.algorithm_of(cfg.algorithm)
    selection = registry.pick(registry.selections(), "`selection`", cfg.selection)
    dealt = partition.load(folder / "partition.npz")
    units = scaling.from_json(shape["scaling"])
    names = record(Names, shape.get("names", {}))  # older runs have none
    names = Names(*map(tuple, names))
    for module in changed(digests, programs(plug_ins)):
        say(f"warning: {folder}: the plug-in {module} has changed since, so answers may differ; bring its file back")
    texts = shape.get("texts") is True  # older runs do not say
    known = {"names": names, "plug_ins": plug_ins, "digests": digests}
    return Plan(cfg, algorithm, selection, model, dealt, units, texts, target, **known)


def _callers_network(
    folder: Path, layers: nn.Module | None, shape: Mapping[str, Any], density: Density, digest: str | None
) -> Model:
    """The network that a caller gives again; raises FedRayError for another than that of the run, of this digest."""
    if layers is None:
        raise FedRayError(f"{folder}: its network was given from Python; give it again, load(folder, model=...)")
    model = network.given(layers, tuple(shape["input_shape"]), shape["classes"], density, played=True)
    caller = own_module(model)
    kept = caller.kept if caller else ""
    if (digest or kept) and digest != of_layers(layers, kept):  # older runs have no digest
        older = f", or of a FedRay that did not keep {kept}" if kept else ""
        raise FedRayError(f"{folder}: is of another network{older}; give the network of this run, or run it again")
    return model


def _check_size(folder: Path, plan: Plan) -> None:
    """Raise FedRayError for a network that files of this size cannot hold, or models that do not fit into memory.

    pFedGP has neither the last layer nor its chains in the files.
    """
    files = (*folder.glob("*.safetensors"), *folder.glob(f"{PERSONAL}/*.safetensors"))
    held = sum(path.stat().st_size for path in files)
    wanted = FLOAT_BYTES * plan.model.slices["body"].stop
    if wanted > held:
        raise FedRayError(
            f"{folder}: its safetensors files hold {held} bytes, and the model that its config.json describes has "
            f"{wanted}; one of them is missing, damaged or of another run"
        )
    models = plan.model.size * plan.algorithm.particles(plan.cfg.algorithm)
    check_memory(
        models, f"{folder / 'config.json'}: its models", "use a machine with more, or the folder of another run"
    )
