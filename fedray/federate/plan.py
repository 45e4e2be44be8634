"""A plan: everything that is fixed before the first round, computed once from a configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedray import registry
from fedray.arrays import philox
from fedray.arrays.rng import Stream
from fedray.config import Experiment
from fedray.data import loading, own, tables
from fedray.data.digests import EXAMPLES
from fedray.data.loading import Dataset
from fedray.data.partition import Partition
from fedray.data.readers import Names, reading
from fedray.data.scaling import Scaling
from fedray.federate.measures import metrics, regression
from fedray.federate.measures.tasks import CLASSIFICATION, REGRESSION, Task
from fedray.nets.model import Model
from fedray.types import Algorithm, Context, Facts, Selection, Stats

SHOWN = 10  # clients in the uncertainty figure where a sample is evaluated: 100 draws of each cost as much as training
WIDE = 1000  # rows of a minibatch up to which its padding is computed, whatever it costs: published runs have fewer
Device = torch.device | str


PLUG_IN = "plug_in."  # and the name of a module: what its digest is called


class Plan(NamedTuple):
    """A validated experiment with its algorithm, network and partition; small enough to send to every process."""

    cfg: Experiment
    algorithm: Algorithm
    selection: Selection
    model: Model
    partition: Partition
    scaling: Scaling | None  # of raw inputs; None: used as they are
    texts: bool = False  # whether inputs are the vectors of words by fedray.data.text
    target: Scaling | None = None  # of real targets, to mean 0 and sd 1 in training; None: labels
    remarks: tuple[str, ...] = ()  # what one must know of the data, and of plug-ins, before one quotes a number
    given: Dataset | None = None  # the caller's own examples; None: those that cfg.data names
    names: Names = Names()  # of the classes and clients; empty where they have numbers only
    notes: tuple[str, ...] = ()  # how a file of the user's own was read
    plug_ins: tuple[str, ...] = ()  # modules that a process must import to know the names in cfg
    # By name, of probabilities [n, C] and labels [n] of a client's test examples; they are averaged over clients.
    own_metrics: Mapping[str, Callable[[np.ndarray, np.ndarray], float]] = {}
    digests: Mapping[
        str, str
    ] = {}  # of examples, owners, layers and plug-ins of the user's own: two runs may differ in them

    @property
    def examples(self) -> str:
        """A digest of examples of the user's own, which may change between two starts; empty: not theirs."""
        return self.digests.get(EXAMPLES, "")

    @property
    def clients(self) -> int:
        """N, the number of clients."""
        return len(self.partition.train)

    @property
    def members(self) -> range:
        """The clients of the federation; those after them are held out."""
        return range(self.clients - self.cfg.novel_clients)

    @property
    def trainers(self) -> range:
        """The clients that a round can select: all members but where the algorithm pools, and then the one that has all
        training examples."""
        return range(1) if self.algorithm.pools else self.members

    @property
    def novel(self) -> range:
        """The clients that are held out, and adapt after the federation's rounds."""
        return range(len(self.members), self.clients)

    @property
    def rounds(self) -> int:
        """The last round: of the federation or, with clients held out, of their adaptation."""
        return self.cfg.rounds + (self.cfg.adapt_rounds if self.novel else 0)

    def adapting(self, round_number: int) -> bool:
        """Whether a round is one of the clients that were held out."""
        return round_number > self.cfg.rounds

    def evaluated(self, round_number: int) -> Sequence[int]:
        """The clients that are evaluated after a round, ascending: of those that it concerns all, or a keyed sample."""
        present = self.novel if self.adapting(round_number) else self.members
        return self._drawn(present, round_number, self.cfg.eval_clients)

    @property
    def shown(self) -> Sequence[int]:
        """The clients of the uncertainty figure, the same in all rounds; of a sample no more than fit on a page."""
        wanted = self.cfg.eval_clients
        return self._drawn(self.members, 0, wanted and min(wanted, SHOWN))

    def _drawn(self, present: range, round_number: int, wanted: int | None) -> Sequence[int]:
        if wanted is None or wanted >= len(present):
            return present
        drawn = self.stream("evaluate", 0, round_number).permutation(len(present))[:wanted]
        return [present[k] for k in drawn.sort().values.tolist()]

    def dataset(self, loaded: Dataset | None = None) -> Dataset:
        """The pooled examples in the run's units: ``loaded``, the caller's own, or those of the files."""
        registry.plug_in_again(self.plug_ins, "this run")
        pooled = self.given if loaded is None else loaded
        if pooled is None:
            pooled = loading.load(self.cfg.data, self.model.classes, self.names.classes)
        with reading(Path(self.cfg.data.name), "give the columns of the run's data"):
            pooled = tables.arranged(pooled, self.names.features)
        x = own.fitted(pooled.x, self.model.input_shape)
        return pooled._replace(x=x, scaling=self.scaling, target=self.target)

    @property
    def facts(self) -> Facts:
        """What the algorithm may know of this federation."""
        cfg = self.cfg
        shard = max(len(indices) for indices in self.partition.train)
        clients = len(self.trainers) or self.clients
        chosen = cfg.clients_per_round
        assert chosen is not None
        unheard = clients - chosen if cfg.train_all else 0
        facts = Facts(clients, chosen, cfg.rounds, cfg.local_steps, cfg.batch_size, shard, unheard)
        return self._narrowed(facts) if cfg.batch_size > max(WIDE, 2 * shard) else facts

    def _narrowed(self, facts: Facts) -> Facts:
        """The facts with minibatches of whole shards and no more padding; as they are where every row has noise of its
        own, and other rows would have other numbers."""
        narrow = facts._replace(batch_size=facts.shard)
        contexts = (Context(self.cfg.algorithm, self.model, each) for each in (facts, narrow))
        given, found = map(self.algorithm.noise_shape, contexts)
        return narrow if given == found else facts

    @property
    def task(self) -> Task:
        """What is reported of predictions."""
        return CLASSIFICATION if self.target is None else REGRESSION

    def measure(self, predictions: Tensor, y: Tensor, shares: Tensor | None = None) -> Stats:
        """Sums of one batch of examples, of real targets in their own units; ``shares`` [M] are weights of the rows."""
        if self.target is None:
            return metrics.evaluate(predictions, y, shares)
        return regression.evaluate(predictions, y, float(self.target.divisor))

    @property
    def context(self) -> Context[Any]:
        """What the algorithm's functions are given first, built anew by a pass over all clients: loops keep it."""
        return Context(self.cfg.algorithm, self.model, self.facts)

    @property
    def personal(self) -> bool:
        """Whether the algorithm has personal models."""
        return self.algorithm.predict_personal is not None

    def initial_server(self) -> Any:
        """The server's state before the first round: every process can compute it."""
        return self.algorithm.server_init(self.context, self.stream("server"))

    def view(self, server: Any) -> Any:
        """What clients evaluate with: what the algorithm publishes, by default its broadcast to all."""
        publish = self.algorithm.publish
        if publish is None:
            return self.algorithm.broadcast(self.context, server, range(self.clients))
        return publish(self.context, server)

    def prediction_noise(
        self, ctx: Context[Any], samples: int, purpose: str, client: int, round_number: int, device: Device = "cpu"
    ) -> Tensor:
        """Noise of a prediction by ``samples`` draws; zeros, the mean weights, where that is 0."""
        shape = self.algorithm.predict_noise(ctx, max(samples, 1))
        if not samples:
            return torch.zeros(shape, device=device)
        return self.normals(purpose, client, round_number, shape, device)

    def normals(
        self, purpose: str, client: int, round_number: int, shape: tuple[int, ...], device: Device = "cpu"
    ) -> Tensor:
        """Standard normals for a client, by the run's generator."""
        stream = self.stream(purpose, client, round_number)
        if self.cfg.noise_generator == "philox" and 0 not in shape:
            return next(philox.steps([stream], 1, shape, device))[0]
        return stream.normal(shape).to(device)

    def stream(self, purpose: str, client: int = 0, round_number: int = 0) -> Stream:
        """The random stream of this run for a purpose, client and round."""
        return Stream(self.cfg.seed, purpose, client, round_number)
