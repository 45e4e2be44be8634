"""What no single record can know: which protocol applies to a dataset and a partition, and what it fills in."""

from __future__ import annotations

import copy

import numpy as np

from fedray import registry
from fedray.config import DataConfig, Experiment, override
from fedray.data import loading
from fedray.data.own import GIVEN, PIXEL
from fedray.data.partition import Partition, called, check_sizes, checked_users, fault
from fedray.data.readers import Dataset
from fedray.data.records import PARTICULAR, DealSettings, PartitionRecord, Protocol
from fedray.data.scaling import within
from fedray.types import require

WIDE = 20.0  # sizes of inputs that nobody standardised: of standard normal ones, the largest of billions is below 7
UNKNOWN = 1000  # examples of a shard whose size no table gives


def partition_name(cfg: DataConfig) -> str:
    """The partition that the user chose, or the dataset's usual one."""
    if cfg.partition != "auto":
        return cfg.partition
    record = loading.record(cfg.name)
    return "natural" if record.owned(cfg) else record.partition


def partition_record(cfg: DataConfig) -> PartitionRecord:
    """The record of the partition; raises FedRayError for an unknown name, with the known ones."""
    return registry.pick(registry.partitions(), "`data.partition`", partition_name(cfg))


def without_labels(cfg: DataConfig) -> DataConfig:
    """The same settings for real targets: where nothing was chosen, and the usual partition deals by labels, iid."""
    if cfg.partition != "auto" or partition_record(cfg).real:
        return cfg
    return override(cfg, {"partition": "iid"})


def protocol(cfg: DataConfig) -> Protocol:
    """The defaults of the paper that deals this dataset in this way; raises FedRayError for an unknown name.

    In this order: the dataset's own protocol for the partition, the protocol of the partition's paper, the dataset's
    general one.
    """
    dataset = loading.record(cfg.name)
    name = partition_name(cfg)
    if name == GIVEN:  # of a caller who deals the examples herself
        return dataset.protocol
    return dataset.protocols.get(name) or partition_record(cfg).protocol or dataset.protocol


def usual_shard(cfg: DataConfig) -> int:
    """Training examples of a client by the protocol's table of sizes; about a thousand where it has none."""
    own = protocol(cfg)
    train, _ = own.sizes.get(cfg.size, (UNKNOWN, 0))
    return train * own.labels if own.sizes else UNKNOWN


def fill_from_protocol(cfg: DataConfig) -> DataConfig:
    """The same settings with absolute paths, and with every open setting filled in from the protocol."""
    own = protocol(cfg)
    settings = {
        "partition": partition_name(cfg),
        "scaling": own.scaling if cfg.scaling == "auto" else cfg.scaling,
        "labels_per_client": _labels(cfg, own) if cfg.labels_per_client is None else cfg.labels_per_client,
        "test_fraction": own.held_out if cfg.test_fraction is None else cfg.test_fraction,
    }
    return override(loading.absolute_paths(cfg), settings)


def _labels(cfg: DataConfig, own: Protocol) -> int | None:
    """The protocol's classes per client, but no more than there are; None where only the user's file can tell."""
    name = partition_name(cfg)
    if name == GIVEN or not partition_record(cfg).by_class:
        return own.labels
    record = loading.record(cfg.name)
    classes = cfg.classes or record.classes
    if classes is None:
        return None if record.suffixes or cfg.name == GIVEN else own.labels
    return min(own.labels, classes)


def _with_labels(cfg: DataConfig, dataset: Dataset) -> DataConfig:
    """The same settings with the protocol's classes per client, or as many as the data have."""
    if cfg.labels_per_client is not None:
        return cfg
    return override(cfg, {"labels_per_client": min(protocol(cfg).labels, dataset.classes)})


def fill_from_dataset(cfg: Experiment, dataset: Dataset) -> Experiment:
    """Fill in what only the data can tell: without a number of clients every user is one, and texts need the lstm.

    Raises FedRayError where there are no users then.
    """
    network = "mlp" if dataset.vectors is None else "lstm"
    clients = cfg.clients
    if clients is None:
        clients = int(checked_users(dataset.users, cfg.data.partition).max()) + 1
    members = max(1, clients - cfg.novel_clients)  # too many are refused as such
    settings = {
        "clients": clients,
        "data": _with_labels(cfg.data, dataset),
        "clients_per_round": members if cfg.clients_per_round is None else cfg.clients_per_round,
        "model.name": network if cfg.model.name == "auto" else cfg.model.name,
    }
    return override(cfg, settings)


def deal(cfg: Experiment, dataset: Dataset, rng: np.random.Generator) -> Partition:
    """Deal the examples to the clients; raises FedRayError where they are too few, or the settings do not fit, and for
    a partition of a plug-in that does not deal as it should."""
    own = _with_labels(fill_from_protocol(cfg.data), dataset)
    record = partition_record(own)
    assert cfg.clients is not None, "the number of clients is known before the examples are dealt"
    assert own.labels_per_client is not None
    assert own.test_fraction is not None
    if cfg.clients > len(dataset.y):  # dealing to very many takes long
        check_sizes(len(dataset.y), cfg.clients)
    reason, remedy = "only the lognormal partition has seeds to mislabel", "leave it out, or `data.partition=lognormal`"
    mislabels = "label_bug" in (record.reads or ())
    require(mislabels or not own.label_bug, "data.label_bug", own.label_bug, reason, remedy)
    reason = "it deals by labels, and the targets are real numbers"
    remedy = "choose dirichlet or iid" + ("" if dataset.users is None else ", or natural")
    require(record.real or not dataset.real, "data.partition", own.partition, reason, remedy)
    settings = DealSettings(cfg.clients, own.labels_per_client, own.test_fraction, own, protocol(own))
    plug_in, before = registry.is_plug_in(registry.PARTITION, own.partition), copy.deepcopy(rng)
    with registry.calling(registry.PARTITION, own.partition, "deal"):
        partition = record.deal(dataset, settings, rng)
        again = record.deal(dataset, settings, before) if plug_in else partition
    reason, remedy = fault(partition, len(dataset.y)), "lower `clients`, or correct the function deal of the partition"
    require(not reason, "data.partition", own.partition, reason, remedy)
    reason = f"it deals to {len(partition.train)} clients, and {cfg.clients} are asked for"
    require(len(partition.train) == cfg.clients, "data.partition", own.partition, reason, remedy)
    reason, remedy = (
        "it deals otherwise when it is asked again",
        "take all randomness from the rng that deal is given",
    )
    require(_same(partition, again), "data.partition", own.partition, reason, remedy)
    return partition


def _same(first: Partition, second: object) -> bool:
    """Whether another partition gives every client the same examples."""
    return (
        isinstance(second, Partition)
        and len(first.train) == len(second.train) == len(second.test)
        and all(
            np.array_equal(one, other)
            for one, other in zip((*first.train, *first.test), (*second.train, *second.test), strict=True)
        )
    )


def _unread(cfg: DataConfig, record: PartitionRecord) -> list[str]:
    """What to say of settings that were changed and that this partition does not read."""
    usual, said = DataConfig(), []
    for name in PARTICULAR:
        value = getattr(cfg, name)
        if record.reads is None or name in record.reads or value == getattr(usual, name):
            continue
        able = [other for other, its in registry.partitions().items() if name in (its.reads or ())]
        choice = " or ".join(f"`data.partition={other}`" for other in able)
        said.append(
            f"`data.{name}` {value} changes nothing: the {cfg.partition} partition, which deals these examples, "
            f"does not read it; {choice} would"
        )
    return said


def describe(cfg: DataConfig) -> str:
    """The partition in words."""
    if cfg.partition == GIVEN:
        return "given by the caller"
    own = protocol(cfg)
    cfg = fill_from_protocol(cfg)
    cfg = override(cfg, {"labels_per_client": own.labels}) if cfg.labels_per_client is None else cfg
    with registry.calling(registry.PARTITION, cfg.partition, "describe"):
        return str(partition_record(cfg).describe(cfg, own))


def remarks(cfg: DataConfig, dataset: Dataset, partition: Partition) -> tuple[str, ...]:
    """What one must know of the data before quoting a number."""
    found: list[str] = []
    if dataset.vectors is not None and cfg.embedding is None:
        found.append("without `data.embedding` the words have random vectors: accuracies are lower than with GloVe's")
    if cfg.scaling in ("auto", "range", "unit") and (top := _dark(dataset)) is not None:
        reason = f"the largest pixel is {top}, but they are scaled as from 0 to {PIXEL}, and then hardly differ"
        found.append(f"{reason}; `data.scaling=standard` scales them by their own mean and sd")
    if cfg.scaling == "auto" and (size := _unscaled(dataset)) > WIDE:
        scaling = "feature" if dataset.x.ndim == 2 else "standard"
        found.append(
            f"inputs are used as they are, and the largest has the size {size:g}: a network may learn little, or "
            f"diverge; `data.scaling={scaling}` gives them mean 0 and sd 1"
        )
    if cfg.moments == "all" and cfg.scaling in ("standard", "feature"):
        found.append("`data.moments=all`: inputs are scaled by the mean and sd of test examples, too")
    if cfg.partition != GIVEN:
        if partition_record(cfg).by_class and cfg.labels_per_client == dataset.classes < protocol(cfg).labels:
            known = f"the data have {dataset.classes} classes, and every client holds all of them"
            found.append(f"{known}; `data.partition=dirichlet` makes clients differ")
        if partition_record(cfg).by_class and cfg.size not in protocol(cfg).sizes:
            found += _left(dataset, partition)
            read = partition_record(cfg).reads
            if cfg.size != DataConfig().size and (read is None or "size" in read):
                found.append(f"`data.size={cfg.size}` has no effect: {cfg.name} has no table of sizes in any paper")
        found += _table_instead(cfg)
        found += partition_record(cfg).remarks(dataset, partition)
        found += _unread(cfg, partition_record(cfg))
    if partition.relabel is not None:
        test = np.concatenate(partition.test)
        wrong = partition.relabel[:, 0]
        share = np.isin(wrong, test).sum() / len(test)
        found.append(
            f"`data.label_bug`: {len(wrong)} examples carry a wrong label, {share:.1%} of those for testing; "
            "accuracies count them, and compare with others of that kind only"
        )
    return tuple(found)


def _table_instead(cfg: DataConfig) -> list[str]:
    """What to say of a share for testing where the paper's table says how many examples every client has."""
    own, reads = protocol(cfg), partition_record(cfg).reads or ()
    if cfg.test_fraction in (None, own.held_out) or "size" not in reads or cfg.size not in own.sizes:
        return []
    reason = f"a table of the paper says how many examples a client of {cfg.name} has, by `data.size`"
    return [f"`data.test_fraction` {cfg.test_fraction} changes nothing: {reason}"]


def _left(dataset: Dataset, partition: Partition) -> list[str]:
    """That most examples are dealt to nobody, where one class is much smaller than the others."""
    dealt = sum(len(part) for part in (*partition.train, *partition.test))
    if 2 * dealt >= len(dataset.y):
        return []
    count = np.bincount(dataset.y, minlength=dataset.classes)
    few = int(count.argmin())
    name = called(few, dataset.names.classes)
    reason = f"a client has as many of each of its classes, and class {name} has {count[few]}"
    return [f"only {dealt} of {len(dataset.y)} examples are dealt: {reason}; `data.partition=dirichlet` deals all"]


def _unscaled(dataset: Dataset) -> float:
    """The size of the largest float input that is used as it is; 0 where all have known units."""
    if dataset.scaling is not None or dataset.x.dtype != np.float32:
        return 0.0
    return float(max(dataset.x.max(), -dataset.x.min()))


def _dark(dataset: Dataset) -> int | None:
    """The largest pixel of images that use no more than half of the range of eight bits; None for all other inputs."""
    units = dataset.scaling
    if dataset.x.dtype != np.uint8 or units is None or not np.array_equal(units.divisor, within(PIXEL).divisor):
        return None
    top = int(dataset.x.max())
    return top if top <= PIXEL / 2 else None
