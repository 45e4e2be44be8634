"""The models of a finished run: what they predict, and how sure they are of it."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedray import registry
from fedray.arrays import trees
from fedray.arrays.tensor_files import Rows
from fedray.config.decode import refuse_damage
from fedray.data import loading, own, tables
from fedray.data.digests import of_examples
from fedray.data.readers import Dataset
from fedray.data.scaling import Scaling
from fedray.data.shards import Shards
from fedray.data.text import Vectors
from fedray.federate.evaluation import ROWS
from fedray.federate.measures import metrics, regression
from fedray.federate.messages import Saved
from fedray.federate.plan import Plan
from fedray.federate.rounds import Snapshot
from fedray.federate.storage.checkpoint_files import read_clients
from fedray.federate.uncertainty import conformal
from fedray.types import Batch, FedRayError, client_itself, one_draw, require, suggestion


class Prediction(NamedTuple):
    """The predictive distribution of B inputs; entropies in nats."""

    probs: Tensor  # [B, C] average over the posterior's draws, or of a mixture's components by their shares
    entropy: Tensor  # [B] total uncertainty H[p̄]
    expected_entropy: Tensor  # [B] aleatoric part, mean over draws of H[p_m]
    mutual_information: Tensor  # [B] epistemic part, their difference
    draws: Tensor  # [M, B, C] one distribution per posterior draw, or per component
    shares: Tensor | None = None  # [M] weights of a mixture's components; None: all the same
    # [B, C] whether a class is in the conformal set, which holds the true class of 90 % of a client's examples; empty
    # where no class fits. None: nothing was calibrated for this model and so many draws (--uncertainty does it for the
    # global model and for members that were evaluated, by the run's own number of draws).
    set: Tensor | None = None

    def columns(self, names: Sequence[str] = ()) -> dict[str, list[Any]]:
        """Lists of plain values, one for each input, with the names of the classes; a set is the classes in it."""
        labels = self.probs.argmax(-1).tolist()
        return {
            "label": labels,
            **({"name": [names[label] for label in labels]} if names else {}),
            "probabilities": self.probs.tolist(),
            "entropy": self.entropy.tolist(),
            "mutual_information": self.mutual_information.tolist(),
            **({} if self.set is None else {"set": [row.nonzero().flatten().tolist() for row in self.set]}),
        }


class RealPrediction(NamedTuple):
    """The predictive distribution of B real targets, in the targets' own units."""

    mean: Tensor  # [B] average over the posterior's draws
    sd: Tensor  # [B] total uncertainty
    aleatoric_sd: Tensor  # [B] noise: root of the mean over draws of σ_m²
    epistemic_sd: Tensor  # [B] standard deviation over draws of their means μ_m
    draws: Tensor  # [M, B, 2] mean μ_m and standard deviation σ_m, one Gaussian per posterior draw

    def columns(self) -> dict[str, list[float]]:
        """Lists of plain values, one for each input."""
        return {name: values.tolist() for name, values in self._asdict().items() if name != "draws"}


class Predictor:
    """The global and the personal models of a finished run."""

    def __init__(self, plan: Plan, snapshot: Snapshot, thresholds: Mapping[int | None, float] = MappingProxyType({})):
        """``thresholds`` are those of conformal sets, by client; of the global model by None."""
        self.plan, self.snapshot, self.thresholds = plan, snapshot, thresholds

    def __repr__(self) -> str:
        plan = self.plan
        name = registry.algorithm_name(self.plan.cfg.algorithm)
        kinds = [kind for kind, has in (("personal", plan.personal), ("global", plan.algorithm.predict_global)) if has]
        example = repr(plan.names.users[0]) if plan.names.users else "0"
        call = f"predict(x, client={example})" if plan.personal else "predict(x)"
        return f"{' and '.join(kinds)} models of {name}, {plan.clients} clients, {plan.cfg.rounds} rounds: .{call}"

    def predict(
        self, x: Any, client: int | str | None = None, samples: int | None = None, seed: int = 0, model: Any = None
    ) -> Prediction | RealPrediction:
        """Predict inputs x [B, ...], in the dataset's own units, with a client's model or the global one (None).
        Of a run on texts, x may be texts [B].
        A client is a number, or a name that its data gave it; one number that could be both is refused.

        Returns a :class:`Prediction` of labels, or a :class:`RealPrediction` of real targets.
        ``samples`` posterior draws are averaged (by default as in the run, 0 for the mean weights).
        ``model`` is that client's :meth:`model`, for whoever keeps it over several calls.
        Raises FedRayError for a model that the method lacks, an unknown client, or inputs of another shape.
        """
        plan = self.plan
        algorithm = self.plan.algorithm
        client = None if client is None else self._number(client)
        predict = self._function(client)
        model = self._model(client) if model is None else model
        samples = plan.cfg.predict_samples if samples is None else _whole("samples", samples)
        require(samples >= 0, "samples", samples, "is negative", "give 0 for the mean weights, or a number of draws")
        ctx = plan.context
        noise = plan.prediction_noise(ctx, samples, f"predict-{seed}", client or 0, 0)
        with torch.no_grad():
            # As many at a time as an evaluation takes, so that memory does not grow with the layers of all of them.
            found = torch.cat([predict(ctx, model, part, noise) for part in self._inputs(x).split(ROWS)], 1)
            shares = None if client is None or algorithm.shares is None else algorithm.shares(ctx, model)
        if plan.target is not None:
            return _real(found, plan.target)
        # A threshold is one of the scores by which it was calibrated: other draws make other scores.
        calibrated = samples == plan.cfg.predict_samples or algorithm.predict_noise is one_draw
        return _uncertainty(found, shares, self.thresholds.get(client) if calibrated else None)

    def meant(self, text: str) -> int | None:
        """The client that a text means, in a request or a parameter: one of this name, or else of this number.

        None where there is no such client.
        """
        names = self.plan.names.users
        if text in names:
            return names.index(text)
        number = int(text) if re.fullmatch("[0-9]{1,9}", text) else self.plan.clients
        return number if number < self.plan.clients else None

    def called(self, number: int) -> int | str:
        """What :meth:`predict` takes for a client of this number: its name, where the data gave it one."""
        return self.plan.names.users[number] if self.plan.names.users else number

    def _number(self, client: int | str) -> int:
        """The number of a client; raises FedRayError for a name that nobody has, and a number with two meanings."""
        names = self.plan.names.users
        if not isinstance(client, str):
            number = _whole("client", client)
            named = names.index(str(number)) if str(number) in names else number
            if named != number:
                other = f" and the number of client {names[number]!r}" if number < len(names) else ""
                raise FedRayError(f"client={number}: is the name of a client{other}; give a name as text, '{number}'")
            return number
        if not names:
            raise FedRayError(
                f"client={client!r}: the clients of this run have numbers only, 0 to {self.plan.clients - 1}"
            )
        if client not in names:
            raise FedRayError(
                f"client={client!r}: no client has this name; {suggestion(client, names)}they are in clients.csv"
            )
        return names.index(client)

    def model(self, client: int | str | None = None) -> Any:
        """What predicts for a client, or for everyone (None): read from the run's files, and of that client only.

        Raises FedRayError for a model that the method lacks, or an unknown client.
        """
        return self._model(None if client is None else self._number(client))

    def _model(self, client: int | None) -> Any:
        self._function(client)
        return self.plan.view(self.snapshot.server) if client is None else self._personal(client)

    def _function(self, client: int | None) -> Any:
        """The method's function that predicts for a client; raises FedRayError where it has none, or no such client."""
        plan = self.plan
        predict = plan.algorithm.predict_global if client is None else plan.algorithm.predict_personal
        if client is not None and not 0 <= client < plan.clients:
            raise FedRayError(f"client={client}: this run has clients 0 to {plan.clients - 1}")
        if predict is None:
            name = registry.algorithm_name(plan.cfg.algorithm)
            lacks = "no global model; give a client" if client is None else "no personal models; leave `client` out"
            raise FedRayError(f"client={None if client is None else self.called(client)!r}: {name} has {lacks}")
        return predict

    def _inputs(self, x: Any) -> Tensor:
        if self.plan.names.features and tables.is_frame(x):  # its columns may stand in another order
            x = tables.selected(x, self.plan.names.features)
        try:
            x = own.as_array("x", x)
        except ValueError as error:
            raise FedRayError(str(error)) from None
        if self.plan.texts and x.ndim == 1 and all(isinstance(each, str) for each in x.tolist()):
            x = self.words.embedded(x.tolist())
        if x.dtype.kind not in "biuf":
            raise FedRayError(f"x holds {x.dtype} values; this network takes numbers")
        with np.errstate(over="ignore"):
            # A copy as PyTorch takes it: of this machine's byte order, and no view that runs backwards.
            x = np.array(own.fitted(x, self.plan.model.input_shape), np.float32, order="C")
        x = torch.from_numpy(x)
        if tuple(x.shape[1:]) != self.plan.model.input_shape:
            wanted = ", ".join(map(str, self.plan.model.input_shape))
            raise FedRayError(f"x has shape {tuple(x.shape)}; this network takes [B, {wanted}]")
        if not x.isfinite().all():
            raise FedRayError("x holds NaN (a missing value), infinity, or a number too large for float32")
        return x if self.plan.scaling is None else self.plan.scaling.apply(x)

    def _personal(self, client: int) -> Any:
        plan = self.plan
        state = self._state(client)
        if plan.algorithm.personalize is client_itself:  # a view may cost more than a model (FedAMP)
            return state
        context = plan.context
        last = plan.rounds if client in plan.novel else plan.cfg.rounds  # in which it was evaluated
        noise = plan.normals("personalize", client, last, plan.algorithm.personal_noise(context))
        view = plan.view(self.snapshot.server)
        return plan.algorithm.personalize(context, state, view, self._shard(client), noise)

    def _shard(self, client: int) -> Batch:
        """The client's training examples; none where its model is made without, so that nobody need have them."""
        plan = self.plan
        if not plan.algorithm.trains_to_predict:
            none = torch.zeros(0)
            x = none.reshape(0, *plan.model.input_shape)
            return Batch(x, none if plan.target else none.long(), none, none.long(), none.sum())
        shards = Shards(self.dataset, plan.partition, [client])
        return trees.row(shards.padded([0], plan.facts.shard), 0)

    @functools.cached_property
    def words(self) -> Vectors:
        """The vectors of words, of a run on texts."""
        file = self.plan.cfg.data.embedding
        return Vectors(None if file is None else Path(file))

    @functools.cached_property
    def dataset(self) -> Dataset:
        """The examples of the run, read once; raises FedRayError where its file holds others by now."""
        try:
            found = self.plan.dataset()
        except FedRayError as error:
            moved = bool(loading.record(self.plan.cfg.data.name).suffixes)
            remedy = "; or say where these examples are now by the argument `data` of fedray.load" if moved else ""
            raise FedRayError(f"{error}{remedy}") from None
        if self.plan.given is None and self.plan.examples and of_examples(found) != self.plan.examples:
            raise FedRayError(
                f"{self.plan.cfg.data.name}: holds other examples than those of this run, on which its personal models "
                "train before they predict; bring the data of then back"
            )
        return found

    def _state(self, client: int) -> Any:
        """The private state of a client; of one that never trained, what it would have begun with."""
        plan, clients = self.plan, self.snapshot.clients
        if isinstance(clients, Rows):
            return clients.row(client)
        if not isinstance(clients, Saved):
            return trees.row(clients, client)
        initial = plan.algorithm.client_init(plan.context, plan.initial_server())
        with refuse_damage(f"{clients.folder}: its models cannot be read", "run it again"):
            return dict(read_clients(clients, {client}, initial)).get(client, initial)


def _whole(name: str, value: Any) -> int:
    """A whole number of the caller's; raises FedRayError for anything else."""
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    require(whole, name, repr(value), "is not a whole number", "give one")
    return int(value)


def _uncertainty(log_probs: Tensor, shares: Tensor | None, threshold: float | None) -> Prediction:
    probs = metrics.log_average(log_probs, shares).exp()
    exact = metrics.log_average(log_probs.double(), shares).exp()  # as in calibration: thresholds may be 1e-7
    entropy = metrics.entropy_of(probs)
    expected = metrics.expected_entropy(log_probs, shares)
    information = (entropy - expected).clamp_min(0)
    likely = None if threshold is None else conformal.thr(exact) <= threshold
    return Prediction(probs, entropy, expected, information, log_probs.exp(), shares, likely)


def _real(predictions: Tensor, target: Scaling) -> RealPrediction:
    found = regression.mixture(predictions, float(target.shift), float(target.divisor))
    sd = (found.aleatoric + found.epistemic).sqrt()
    draws = torch.stack([found.means, (found.log_variances / 2).exp()], -1)
    return RealPrediction(found.mean, sd, found.aleatoric.sqrt(), found.epistemic.sqrt(), draws)
