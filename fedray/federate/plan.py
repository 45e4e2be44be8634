"""A plan: everything that is fixed before the first round, computed once from a configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from fedray import registry
from fedray.arrays import philox
from fedray.arrays.rng import Stream
from fedray.config import Experiment, override
from fedray.data import loading, own, papers
from fedray.data.loading import Dataset
from fedray.data.partition import Partition, check_given, hold_out_validation, pooled
from fedray.data.readers import Names
from fedray.data.scaling import Scaling, of_targets
from fedray.data.shards import relabelled
from fedray.federate.given import EXAMPLES, check_no_files, of_examples
from fedray.federate.given import digests as digests_of
from fedray.federate.measures import metrics, regression
from fedray.federate.measures.tasks import CLASSIFICATION, REGRESSION, Task
from fedray.nets import network
from fedray.nets.densities import Density
from fedray.nets.model import Model, check_memory
from fedray.types import Algorithm, Context, Facts, FedRayError, Selection, Stats, require

SHOWN = 10  # clients in the uncertainty figure where a sample is evaluated: 100 draws of each cost as much as training
WIDE = 1000  # rows of a minibatch up to which its padding is computed, whatever it costs: published runs have fewer
Device = torch.device | str


class Plan(NamedTuple):
    """A validated experiment with its algorithm, network and partition; small enough to send to every process."""

    cfg: Experiment
    algorithm: Algorithm
    selection: Selection
    model: Model
    partition: Partition
    scaling: Scaling | None  # of raw inputs; None: used as they are
    target: Scaling | None = None  # of real targets, to mean 0 and sd 1 in training; None: labels
    remarks: tuple[str, ...] = ()  # what one must know of the data before one quotes a number
    given: Dataset | None = None  # the caller's own examples; None: those that cfg.data names
    names: Names = Names()  # of the classes and clients; empty where they have numbers only
    notes: tuple[str, ...] = ()  # how a file of the user's own was read
    plug_ins: tuple[str, ...] = ()  # modules that a process must import to know the names in cfg
    # By name, of probabilities [n, C] and labels [n] of a client's test examples; they are averaged over clients.
    own_metrics: Mapping[str, Callable[[np.ndarray, np.ndarray], float]] = {}
    digests: Mapping[str, str] = {}  # of examples, owners and layers of the user's own: two runs may differ in them

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


def resolve(cfg: Experiment) -> Experiment:
    """Fill in what is left to the dataset's paper protocol: clients, clients per round, network, data root.

    What only the data can tell stays open: :func:`make_plan` loads them.
    """
    protocol = papers.protocol(cfg.data)
    clients = protocol.clients if cfg.clients is None else cfg.clients
    members = None if clients is None else max(1, clients - cfg.novel_clients)  # too many are refused as such
    per_round = members
    if cfg.clients is None and members is not None and protocol.clients_per_round is not None:
        per_round = min(protocol.clients_per_round, members)
    if cfg.clients_per_round is not None:
        per_round = cfg.clients_per_round
    if cfg.algorithm is not None and registry.algorithm_of(cfg.algorithm).pools:
        per_round = 1  # who has all the data
    return override(
        cfg,
        {
            "clients": clients,
            "clients_per_round": per_round,
            "data": papers.fill_from_protocol(cfg.data),
            "model.name": protocol.network if cfg.model.name == "auto" else cfg.model.name,
        },
    )


def _check_clients(cfg: Experiment, algorithm: Algorithm) -> None:
    """Raise FedRayError for more clients in a round, or held out of them all, than there are."""
    novel, chosen, clients = cfg.novel_clients, cfg.clients_per_round, cfg.clients
    assert chosen is not None
    assert clients is not None
    reason = f"it leaves none of {clients} clients to the federation"
    require(novel < clients, "novel_clients", novel, reason, "lower it or raise `clients`")
    reason = f"a round needs between 1 and all {clients - novel} clients"
    require(1 <= chosen <= clients - novel, "clients_per_round", chosen, reason, "lower it or raise `clients`")
    asked = cfg.eval_clients
    reason = f"the federation has {clients - novel} clients"
    require(asked is None or asked <= clients - novel, "eval_clients", asked, reason, "leave it out to evaluate all")
    able = ", ".join(name for name, record in registry.algorithms().items() if record.adapt is not None)
    reason = f"{registry.algorithm_name(cfg.algorithm)} has no personal factors that a newcomer could adapt"
    require(novel == 0 or algorithm.adapt is not None, "novel_clients", novel, reason, f"choose {able}")


def _check_likelihood(cfg: Experiment, algorithm: Algorithm, density: Density) -> None:
    """Raise FedRayError for a noise that the algorithm does not learn, with those that do."""
    able = ", ".join(name for name, record in registry.algorithms().items() if record.gaussian)
    reason = f"{registry.algorithm_name(cfg.algorithm)} learns no noise precision; it is for labels"
    ok = density.noise == 0 or algorithm.gaussian
    require(ok, "model.likelihood", "gaussian", reason, f"choose {able}, or labels and categorical")


def _check_memory(plan: Plan) -> None:
    """Raise FedRayError for particles that this machine's memory cannot hold."""
    size = plan.model.size
    what = f"{registry.algorithm_name(plan.cfg.algorithm)} with {size} parameters: its models"
    check_memory(size * plan.algorithm.particles(plan.cfg.algorithm), what, "lower `particles` or `model.hidden`")


def _pooled(cfg: Experiment, algorithm: Algorithm, partition: Partition, owned: bool) -> Partition:
    """All training examples at one place; raises FedRayError where they have owners, unless that was asked for."""
    name = registry.algorithm_name(cfg.algorithm)
    reason = "it puts the training examples of all clients in one place, and these belong to users"
    remedy = "compare with `algorithm=local`, or give `pool_users=True` if you may see them all"
    require(algorithm.pools == "owned" or not owned, "algorithm", name, reason, remedy)
    return pooled(partition)


def plug_ins_of(cfg: Experiment) -> tuple[str, ...]:
    """The modules of the plug-ins that a resolved experiment uses."""
    names = {
        registry.ALGORITHM: registry.algorithm_name(cfg.algorithm),
        registry.SELECTION: cfg.selection,
        registry.DATASET: loading.record_name(cfg.data.name),
        registry.PARTITION: cfg.data.partition,
        registry.NETWORK: cfg.model.name,
    }
    return registry.plug_ins_of(names)


def refusal(cfg: Experiment) -> str | None:
    """Why an experiment cannot run, as far as the settings alone tell; None: nothing speaks against it.

    Nothing is read. Instead of the dataset the shape counts that its record states, and instead of the partition
    shards of the protocol's size. What only the files can tell is left to :func:`make_plan`.
    """
    cfg = resolve(cfg)
    record = loading.record(cfg.data.name)
    if record.shape is None or record.classes is None or cfg.clients is None:
        return None
    classes = min(record.classes, cfg.data.classes or record.classes)
    try:
        algorithm, selection = _methods(cfg)
        _check_clients(cfg, algorithm)
        network_record = registry.pick(registry.networks(), "`model.name`", cfg.model.name)
        model = network.build(network_record, cfg.model, record.shape, classes)
        shards = (np.arange(papers.usual_shard(cfg.data)),) * cfg.clients
        _accept(Plan(cfg, algorithm, selection, model, Partition(shards, shards), None))
    except FedRayError as error:
        return str(error)
    return None


def _methods(cfg: Experiment) -> tuple[Algorithm, Selection]:
    """The algorithm and the policy of an experiment; raises FedRayError for a policy whose score is not offered."""
    algorithm = registry.algorithm_of(cfg.algorithm)
    selection = registry.pick(registry.selections(), "`selection`", cfg.selection)
    require(
        selection.score is None or selection.score in algorithm.scores,
        "selection",
        cfg.selection,
        f"{registry.algorithm_name(cfg.algorithm)} offers no {selection.score} score",
        "choose `selection=uniform`",
    )
    if selection.with_floor is not None:
        selection = selection._replace(select=selection.with_floor(cfg.selection_epsilon))
    return algorithm, selection


def _accept(plan: Plan) -> Plan:
    """The plan itself; raises FedRayError where memory or the algorithm refuses it."""
    _check_memory(plan)
    plan.initial_server()  # the algorithm refuses here what it cannot run
    return plan


def make_plan(
    cfg: Experiment,
    dataset: Any = None,
    partition: Partition | None = None,
    layers: nn.Module | None = None,
    density: Density | None = None,
) -> Plan:
    """Check an experiment and fix its partition and network.

    A given ``dataset`` (whatever :func:`fedray.data.own.given` takes), ``partition``, network of ``layers`` (an
    nn.Module) or ``density`` of the targets takes the place of the one that the experiment names, in every process.
    Real targets are standardised unless the dataset says by what to scale.

    Raises FedRayError for anything that could not run: an unknown dataset or policy, a split that is too large,
    unreadable files, a policy whose score the algorithm does not offer.
    """
    if type(cfg.algorithm) not in {record.config for record in registry.algorithms().values()}:
        raise FedRayError(
            f"algorithm={cfg.algorithm!r}: is not the settings of an algorithm; give one, such as PFedBayes(), from "
            f"fedray.algorithms ({', '.join(registry.algorithms())})"
        )
    given = None if dataset is None else own.given(dataset)
    if given is not None and cfg.data.name == own.GIVEN:
        check_no_files(cfg.data)
    asked = _named_as_given(cfg, given, partition, layers)
    cfg = resolve(asked)
    algorithm, selection = _methods(cfg)
    dataset = loading.load(cfg.data) if given is None else given
    if dataset.real:
        cfg = resolve(override(asked, {"data": papers.without_labels(asked.data)}))
    cfg = papers.fill_from_dataset(cfg, dataset)
    _check_clients(cfg, algorithm)
    owned = dataset.users is not None or partition is not None
    owners = partition
    partition = _dealt(cfg, dataset, partition)
    density = density or network.density(cfg.model, dataset.real)
    _check_likelihood(cfg, algorithm, density)
    remarks = papers.remarks(cfg.data, dataset, partition)  # of the shards as they were dealt
    partition = _validated(cfg, dataset, partition)
    if layers is None:
        record = registry.pick(registry.networks(), "`model.name`", cfg.model.name)
        model = network.build(record, cfg.model, dataset.input_shape, dataset.classes, density)
    else:
        model = network.given(layers, dataset.input_shape, dataset.classes, density)
    members = partition.train[: len(partition.train) - cfg.novel_clients]
    scaling = loading.scaling(cfg.data, dataset, members)
    target = (dataset.target or of_targets(dataset.y[np.concatenate(members)])) if dataset.real else None
    partition = _pooled(cfg, algorithm, partition, owned) if algorithm.pools else partition
    users = dataset.names.users
    each = cfg.data.partition == "natural" and len(users) == cfg.clients  # else clients are groups of users
    names = Names(dataset.names.classes, users if each else ())
    plan = Plan(cfg, algorithm, selection, model, partition, scaling, target, remarks, given, names, dataset.notes)
    examples = of_examples(dataset) if loading.of_the_users(cfg.data.name) else ""
    digests = digests_of(examples, owners, layers)
    return _accept(plan._replace(plug_ins=plug_ins_of(cfg), digests=digests))


def _named_as_given(
    cfg: Experiment, dataset: Dataset | None, partition: Partition | None, layers: nn.Module | None
) -> Experiment:
    """The experiment, which says what of it is given; a given dataset with owners is dealt by them."""
    if partition is not None:
        clients = len(partition.train) if cfg.clients is None else cfg.clients
        cfg = override(cfg, {"data.partition": papers.GIVEN, "clients": clients})
    if layers is not None:
        cfg = override(cfg, {"model.name": papers.GIVEN})
    if dataset is not None and dataset.names.users and cfg.data.partition == "auto":
        clients = len(dataset.names.users) if cfg.clients is None else cfg.clients
        cfg = override(cfg, {"data.partition": "natural", "clients": clients})
    return cfg


def _dealt(cfg: Experiment, dataset: Dataset, partition: Partition | None) -> Partition:
    """The given shards, once they are checked, or those that the experiment names."""
    if partition is None:
        return papers.deal(cfg, dataset, Stream(cfg.seed, "partition").numpy)
    check_given(partition, cfg.clients, len(dataset.y))
    return partition


def _validated(cfg: Experiment, dataset: Dataset, partition: Partition) -> Partition:
    """The shards, of whose training examples a share is held out."""
    if not cfg.data.validation:
        return partition
    labels = relabelled(dataset, partition).y
    return hold_out_validation(
        partition, cfg.data.validation, labels, lambda client: Stream(cfg.seed, "validation", client).numpy
    )
