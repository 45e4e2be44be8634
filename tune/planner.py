"""The plans of many experiments, whose examples are read once."""

from __future__ import annotations

from fedray.config import DataConfig, Experiment
from fedray.data import loading
from fedray.data.digests import of_examples
from fedray.data.readers import Dataset
from fedray.federate.plan import Plan
from fedray.federate.planning import make_plan, resolve


class Planner:
    """Plans experiments and keeps the examples that it has read for the next one."""

    def __init__(self) -> None:
        self._read: dict[DataConfig, Dataset] = {}

    def plan(self, cfg: Experiment) -> Plan:
        """The plan, without the examples; raises FedRayError as :func:`fedray.federate.planning.make_plan`."""
        return make_plan(resolve(cfg), self.dataset(cfg))._replace(given=None)  # unresolved, all users would be clients

    def dataset(self, cfg: Experiment) -> Dataset:
        """The examples of an experiment; raises FedRayError where they cannot be read."""
        data = resolve(cfg).data
        files = loading.files(data)
        if files not in self._read:
            self._read[files] = loading.load(data)
        return self._read[files]

    def digests(self) -> tuple[str, ...]:
        """Of the examples in the user's own files, of those that were read."""
        own = (dataset for files, dataset in self._read.items() if loading.of_the_users(files.name))
        return tuple(sorted({of_examples(dataset) for dataset in own}))
