"""From an experiment to its plan, or to the reason why it cannot run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from fedray import registry
from fedray.arrays.rng import Stream
from fedray.config import Experiment, override
from fedray.data import loading, own, papers
from fedray.data.digests import digests, of_examples, of_program
from fedray.data.given import given as from_caller
from fedray.data.loading import Dataset
from fedray.data.partition import Partition, check_given, hold_out_validation, pooled
from fedray.data.scaling import of_targets
from fedray.data.shards import relabelled
from fedray.federate import rehearsal
from fedray.federate.plan import PLUG_IN, WIDE, Plan
from fedray.nets import network
from fedray.nets.densities import Density
from fedray.nets.model import Model, check_memory, own_module
from fedray.types import Algorithm, FedRayError, Selection, Sums, require


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


def _unread(asked: Experiment, algorithm: Algorithm) -> list[str]:
    """What to say of settings that were changed and that this experiment does not read."""
    usual = Experiment(algorithm=asked.algorithm)
    presets = (preset.overrides for preset in algorithm.presets.values())
    own = [
        settings["selection_epsilon"] for settings in (algorithm.defaults, *presets) if "selection_epsilon" in settings
    ]
    floored = registry.selections()[asked.selection].with_floor is not None
    said = []
    if asked.novel_clients == 0 and asked.adapt_rounds != usual.adapt_rounds:
        said.append(f"`adapt_rounds` {asked.adapt_rounds} changes nothing without `novel_clients`")
    if not floored and asked.selection_epsilon not in (usual.selection_epsilon, *own):
        reason = f"the {asked.selection} policy draws by no scores"
        said.append(f"`selection_epsilon` {asked.selection_epsilon} changes nothing: {reason}")
    return said


def _padded(plan: Plan) -> list[str]:
    """What to say of minibatches that are much larger than any shard, where the method computes their empty rows."""
    facts = plan.facts
    if facts.batch_size <= max(WIDE, 2 * facts.shard):
        return []
    return [
        f"`batch_size` {facts.batch_size}: no client has more than {facts.shard} examples, and every row is computed"
    ]


def _check_memory(plan: Plan) -> None:
    """Raise FedRayError for particles that this machine's memory cannot hold."""
    size = plan.model.size
    what = f"{registry.algorithm_name(plan.cfg.algorithm)} with {size} parameters: its models"
    check_memory(size * plan.algorithm.particles(plan.cfg.algorithm), what, "lower `particles` or `model.hidden`")


def _check_weights(plan: Plan) -> None:
    """Raise FedRayError for weights of clients that are no whole numbers, or depend on who else is in a process."""
    how = plan.algorithm.aggregate
    if not isinstance(how, Sums):
        return
    n = torch.tensor([3.0, 5.0], dtype=torch.float64)
    found, alone = how.weigh(plan.context, n), torch.cat([how.weigh(plan.context, each) for each in n.split(1)])
    if not torch.equal(found, alone.round()):
        name = registry.algorithm_name(plan.cfg.algorithm)
        raise FedRayError(
            f"algorithm {name}: weigh gives clients of 3 and 5 examples {found.tolist()}, and each by itself "
            f"{alone.tolist()}; return whole numbers that depend on a client's own n, and divide in absorb"
        )


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


def programs(plug_ins: Sequence[str]) -> dict[str, str]:
    """The digests of plug-ins, under the names that a plan has for them; a compiled module has none."""
    sources = {module: registry.programs[module] for module in plug_ins if module in registry.programs}
    return {f"{PLUG_IN}{module}": of_program(source) for module, source in sources.items()}


def changed(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """The plug-ins whose digest was another one the last time; one that had none is not known to have changed."""
    names = [name for name in now if name.startswith(PLUG_IN) and name in before]
    return [name.removeprefix(PLUG_IN) for name in names if before[name].rpartition("+")[2] != now[name]]


def refusal(cfg: Experiment) -> str | None:
    """Why an experiment cannot run, as far as the settings alone tell; None: nothing speaks against it.

    Nothing is read. Instead of the dataset the shape counts that its record states, and instead of the partition
    shards of the protocol's size. What only the files can tell is left to :func:`make_plan`.
    """
    try:
        cfg = resolve(cfg)
        record = loading.record(cfg.data.name)
        if record.shape is None or record.classes is None or cfg.clients is None:
            return None
        classes = min(record.classes, cfg.data.classes or record.classes)
        algorithm, selection = _methods(cfg)
        _check_clients(cfg, algorithm)
        density = network.density(cfg.model, real=False)
        _check_likelihood(cfg, algorithm, density)
        network_record = registry.pick(registry.networks(), "`model.name`", cfg.model.name)
        with registry.calling(registry.NETWORK, cfg.model.name, "layers"):
            model = network.build(network_record, cfg.model, record.shape, classes, density)
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
    """The plan, with what its plug-ins are worth a warning for; raises FedRayError where memory or the algorithm
    refuses it."""
    _check_memory(plan)
    plan = plan._replace(remarks=(*plan.remarks, *rehearsal.rehearse(plan)))
    _check_weights(plan)
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

    A given ``dataset`` (whatever :func:`fedray.data.given.given` takes), ``partition``, network of ``layers`` (an
    nn.Module) or ``density`` of the targets takes the place of the one that the experiment names, in every process.
    Real targets are standardised unless the dataset says by what to scale.

    Raises FedRayError for anything that could not run: an unknown dataset or policy, a split that is too large,
    unreadable files, a policy whose score the algorithm does not offer.
    """
    registry.algorithm_name(cfg.algorithm)  # refuses what is none, before anything is read
    given = None if dataset is None else from_caller(dataset)
    if given is not None and cfg.data.name == own.GIVEN:
        loading.check_no_files(cfg.data)
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
    model = _model(cfg, dataset, layers, density)
    remarks = (
        *papers.remarks(cfg.data, dataset, partition),  # as they were dealt
        *_unread(asked, algorithm),
        *(_unread_widths(cfg, dataset) if layers is None else ()),
    )
    partition = _validated(cfg, dataset, partition)
    members = partition.train[: len(partition.train) - cfg.novel_clients]
    scaling = loading.scaling(cfg.data, dataset, members)
    target = (dataset.target or of_targets(dataset.y[np.concatenate(members)])) if dataset.real else None
    partition = _pooled(cfg, algorithm, partition, owned) if algorithm.pools else partition
    users = dataset.names.users
    each = cfg.data.partition == "natural" and len(users) == cfg.clients  # else clients are groups of users
    names = dataset.names._replace(users=users if each else ())
    examples = of_examples(dataset) if loading.of_the_users(cfg.data.name) else ""
    caller, plug_ins = own_module(model), plug_ins_of(cfg)
    plan = Plan(
        cfg,
        algorithm,
        selection,
        model,
        partition,
        scaling,
        texts=dataset.texts,
        target=target,
        remarks=remarks,
        given=given,
        names=names,
        notes=dataset.notes,
        plug_ins=plug_ins,
        digests={**digests(examples, owners, layers, caller.kept if caller else ""), **programs(plug_ins)},
    )
    return _accept(plan._replace(remarks=(*remarks, *_padded(plan))))


def _model(cfg: Experiment, dataset: Dataset, layers: nn.Module | None, density: Density) -> Model:
    """The network that the experiment names, or the caller's own."""
    if layers is not None:
        return network.given(layers, dataset.input_shape, dataset.classes, density)
    record = registry.pick(registry.networks(), "`model.name`", cfg.model.name)
    with registry.calling(registry.NETWORK, cfg.model.name, "layers"):
        return network.build(record, cfg.model, dataset.input_shape, dataset.classes, density)


def _unread_widths(cfg: Experiment, dataset: Dataset) -> list[str]:
    """What to say of widths that were changed and that the network does not have."""
    record = registry.networks()[cfg.model.name]
    return [
        f"`model.{name}` {getattr(cfg.model, name)} changes nothing: {cfg.model.name} has no such layers"
        for name in network.unread(record, cfg.model, dataset.input_shape, dataset.classes)
    ]


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
