"""The plans of many experiments, whose examples are read once, and those of a sweep's trials before it begins."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

from fedray.config import DataConfig, Experiment, override
from fedray.data import loading
from fedray.data.digests import of_examples
from fedray.data.readers import Dataset
from fedray.federate.plan import Plan
from fedray.federate.planning import make_plan, resolve
from fedray.running import stages
from fedray.types import Choice, FedRayError, for_command_line
from tune.space import Domain, Grid, show

DECIDING = ("clients", "data.name", "data.classes", "data.partition")  # settings that decide how many clients there are


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


class Preview(NamedTuple):
    """What is known of the trials of a sweep before one begins."""

    clients: int  # the most of any configuration
    messages: tuple[str, ...] = ()  # how their data were read, and what one must know to quote a number; once each


def preview(planner: Planner, base: Experiment, space: Mapping[str, Domain], seeds: Sequence[int]) -> Preview:
    """Plan the trials of a sweep; raises FedRayError where one could not be played."""
    most = 0
    messages: dict[str, None] = {}
    for origin, settings in _tried(space, seeds):
        try:
            plan = planner.plan(override(base, settings))
        except FedRayError as error:
            if not origin:
                raise
            raise FedRayError(f"{origin}: {for_command_line(error)}") from None
        most = max(most, plan.clients)
        if settings["seed"] == seeds[0]:  # those of other seeds differ in their counts only
            messages |= dict.fromkeys(stages.announcements(plan))
    return Preview(most, tuple(messages))


def _tried(space: Mapping[str, Domain], seeds: Sequence[int]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The trials that are planned before Ray starts, each with the option that makes it: the first of all values, which
    no option makes alone; then every other value, end of a range and seed; and all combinations of those that decide
    how many clients there are."""
    tried = {name: domain.values if isinstance(domain, Choice | Grid) else domain for name, domain in space.items()}
    first = {name: values[0] for name, values in tried.items()} | {"seed": seeds[0]}
    yield "", first
    for name, values in tried.items():
        written = f"--space {name.removeprefix('algorithm.')}={show(space[name])}"
        yield from ((written, first | {name: value}) for value in values[1:])
    yield from ((f"--seeds {len(seeds)}: seed {seed}", first | {"seed": seed}) for seed in seeds[1:])
    deciding = [name for name in DECIDING if isinstance(space.get(name), Choice | Grid)]
    for values in product(*(tried[name] for name in deciding)):
        chosen = dict(zip(deciding, values, strict=True))
        if sum(first[name] != value for name, value in chosen.items()) > 1:  # one alone has been planned
            yield f"--space {', '.join(f'{name}={value}' for name, value in chosen.items())}", first | chosen
