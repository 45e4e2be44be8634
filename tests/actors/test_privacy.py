"""What leaves an actor: nothing in which a private example can be read."""

from __future__ import annotations

import inspect
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from actors.client import ClientActor
from actors.server import ServerActor
from fedray import registry
from fedray.arrays import trees
from fedray.config import Execution
from fedray.data import loading
from fedray.data.shards import Shards
from fedray.federate import totals
from fedray.federate.in_process import LocalFederation
from fedray.federate.messages import Saved
from fedray.federate.plan import Plan
from fedray.types import Stage
from tests.helpers import ALGORITHMS, each_of, federated_plan, gathering, small_plan

IDS = (1, 2, 4)
ALIKE = 0.9999  # correlation from which on an array holds an example, be it scaled, shifted or rounded
WORD = 80  # signs of a file's or metric's name
REPORTED = ("fedavg", "fedper")  # whose uncertainty reports are searched: all methods' are made by the same functions
LABELS_MIN = 50  # a shorter vector of labels may look like a row of counts


def secrets(plan: Plan) -> list[np.ndarray]:
    """All private examples [n, D] of all clients, and their label vectors [1, n_i]."""
    shards = each_of(Shards(loading.load(plan.cfg.data), plan.partition, range(plan.clients)))
    x = np.concatenate([part.flatten(1).numpy() for shard in shards for part in (shard.train_x, shard.test_x)])
    labels = [part.numpy()[None] for shard in shards for part in (shard.train_y, shard.test_y)]
    return [x, *(y for y in labels if y.size >= LABELS_MIN)]


NUMBERS = torch.Tensor | np.ndarray | np.generic | int | float


def arrays(tree: Any, name: str = "") -> Iterator[tuple[str, np.ndarray]]:
    """Every array in what was returned; numbers beside each other count as one. Refuses what it cannot look into."""
    if isinstance(tree, NUMBERS):
        yield name, np.asarray(tree)
    elif isinstance(tree, Mapping | tuple | list):
        items = dict(tree) if isinstance(tree, Mapping) else dict(enumerate(tree))
        fields = getattr(tree, "_fields", items)
        numbers = [float(value) for value in items.values() if isinstance(value, NUMBERS) and np.ndim(value) == 0]
        yield name, np.array(numbers)
        for field, value in zip(fields, items.values(), strict=True):
            yield from arrays(value, f"{name}.{field}")
    elif isinstance(tree, str):
        assert len(tree) <= WORD, f"{name} is a text of {len(tree)} signs: look into it too"
    else:
        assert tree is None, f"{name} is a {type(tree)}: look into it too"


def unit(rows: np.ndarray) -> np.ndarray:
    """Rows shifted and scaled to mean 0 and length 1; constant ones become 0."""
    rows = rows - rows.mean(1, keepdims=True)
    length = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.divide(rows, length, out=np.zeros_like(rows), where=length > 1e-6)


def holds(array: np.ndarray, secret: np.ndarray) -> bool:
    """Whether values one after the other, along any axis, are a row of ``secret`` up to scale and offset."""
    known, width = unit(secret.astype(np.float32)), secret.shape[1]
    for axis in range(array.ndim):
        flat = np.nan_to_num(np.moveaxis(array, axis, -1).reshape(-1).astype(np.float32))
        if flat.size >= width:
            windows = np.lib.stride_tricks.sliding_window_view(flat, width)
            pieces = np.array_split(windows, 1 + len(windows) // 10_000)
            if any((unit(piece) @ known.T).max() > ALIKE for piece in pieces):
                return True
    return False


def leaks(returned: Any, known: list[np.ndarray], seen: dict[Any, bool] | None = None) -> list[str]:
    """Names of the arrays in which an example, or a client's labels, can be read; none is ``seen`` through twice."""
    found, seen = [], {} if seen is None else seen
    for name, array in arrays(returned):
        content = array.dtype.str, array.shape, array.tobytes()
        if content not in seen:
            seen[content] = any(holds(array, secret) for secret in known)
        found += [name] if seen[content] else []
    return found


def probed(plan: Plan) -> Plan:
    """The plan with one score more, so that every algorithm can be probed."""
    stage = Stage(lambda ctx, client, down, message, batch: batch.weight.sum(), lambda *args: args[-1])
    return plan._replace(algorithm=plan.algorithm._replace(scores={**plan.algorithm.scores, "size": (stage,)}))


def trained(actor: ClientActor, plan: Plan, exponents: tuple[int, ...] = ()) -> Any:
    down = trees.to_numpy(plan.algorithm.broadcast(plan.context, plan.initial_server(), IDS))
    return actor.train(1, IDS, down, exponents, IDS)


def units(actor: ClientActor, plan: Plan) -> tuple[int, ...]:
    """Of the terms of a round; none where the server wants all uploads."""
    largest = trees.to_torch(trained(actor, plan)[0].largest)
    return () if largest is None else totals.units(largest, len(IDS))


def settled(actor: ClientActor, plan: Plan) -> Any:
    """A round that ends with one call: the reply, with the partial sums if there are any, and the committed states."""
    return trained(actor, plan, units(actor, plan))


def added(actor: ClientActor, plan: Plan) -> Any:
    """Partial sums, where another unit was expected."""
    found = units(actor, plan)
    down = trees.to_numpy(plan.algorithm.broadcast(plan.context, plan.initial_server(), IDS))
    return actor.add(1, IDS, down, IDS, found) if found else None


def evaluated(actor: ClientActor, plan: Plan) -> Any:
    view = trees.to_numpy(plan.view(plan.initial_server()))
    return [actor.evaluate(1, view, spotlight) for spotlight in (True, False)]


def compared(actor: ClientActor, plan: Plan) -> Any:
    return actor.class_losses(1, trees.to_numpy(plan.view(plan.initial_server()))) if plan.personal else None


def questioned(actor: ClientActor, plan: Plan) -> Any:
    if registry.algorithm_name(plan.cfg.algorithm) not in REPORTED:
        return None
    view = trees.to_numpy(plan.view(plan.initial_server()))
    return actor.uncertainty(1, view, np.zeros((3, *plan.model.input_shape), np.float32))


def asked(actor: ClientActor, plan: Plan) -> Any:
    server, replies = plan.initial_server(), []
    for score, stages in plan.algorithm.scores.items():
        message = None
        for number, stage in enumerate(stages):
            replies.append(actor.probe(score, number, trees.to_numpy(plan.view(server)), trees.to_numpy(message)))
            message = stage.combine(plan.context, server, trees.to_torch(replies[-1]))
    return replies


def saved(actor: ClientActor, plan: Plan) -> Any:
    """What is said about the files, what is in them, and what an actor that reads them says."""
    with tempfile.TemporaryDirectory() as folder:
        files = actor.save(folder)
        assert files
        again = actor.load(Saved(folder, 1, tuple(files)))
        return [files, [dict(load_file(f"{folder}/{file.name}")) for file in files], again]


def moved(actor: ClientActor, plan: Plan) -> Any:
    piece = settled(actor, plan)[1]
    return [actor.host(IDS[:1], piece), actor.host(IDS, piece)]


# One case for every public method, called one after the other on the same actor.
CLIENT_CASES: dict[str, Callable[[ClientActor, Plan], Any]] = {
    "reset": lambda actor, plan: actor.reset(plan),
    "train": lambda actor, plan: [trained(actor, plan), settled(actor, plan)],
    "add": added,
    "restore": lambda actor, plan: actor.restore(settled(actor, plan)[1]),
    "host": moved,
    "evaluate": evaluated,
    "class_losses": compared,
    "uncertainty": questioned,
    "probe": asked,
    "snapshot": lambda actor, plan: actor.snapshot(),
    "save": saved,
    "load": saved,
    "hand_over": lambda actor, plan: actor.hand_over(),
    "pid": lambda actor, plan: actor.pid(),
    "clear": lambda actor, plan: actor.clear(),
}
SERVER_CASES = {"play", "snapshot", "class_losses", "uncertainty", "history", "pid", "client_pids", "save"}


def public(actor: type) -> set[str]:
    return {name for name, _ in inspect.getmembers(actor, inspect.isfunction) if not name.startswith("_")}


def silent(actor: type) -> set[str]:
    """The methods that answer nothing."""
    return {name for name in public(actor) if inspect.signature(getattr(actor, name)).return_annotation == "None"}


PERSONAL = {
    "bpfed": lambda plan, states: states.posterior.q.mu[:, plan.model.part(plan.cfg.algorithm.personal).numpy()],
    "pfedbayes": lambda plan, states: states.q.mu[:, : plan.model.size],
    "fedper": lambda plan, states: states.theta,
    "fedrep": lambda plan, states: states.theta,
    "lg_fedavg": lambda plan, states: states.theta,
}  # of the private states, what is a client's alone


@pytest.mark.parametrize("algorithm", PERSONAL)
def test_no_personal_parameter_leaves_its_actor(algorithm: str) -> None:
    """Its numbers are in no reply of training, evaluation or scoring; a few may coincide to the bit."""
    plan = small_plan(algorithm)
    actor = ClientActor(plan, IDS, "loop")
    reply, piece = settled(actor, plan)
    start = np.concatenate([leaf.flatten() for leaf in trees.leaves(trees.to_numpy(plan.initial_server()))])
    secret = np.setdiff1d(PERSONAL[algorithm](plan, piece.states), start)
    assert len(secret) > 100
    told = [array.flatten() for _, array in arrays([reply, evaluated(actor, plan), asked(actor, plan)])]
    assert np.intersect1d(secret, np.concatenate(told)).size < 0.01 * len(secret)


def test_every_method_of_an_actor_has_a_case_here() -> None:
    assert public(ClientActor) == set(CLIENT_CASES)
    assert public(ServerActor) - silent(ServerActor) == SERVER_CASES


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_no_reply_of_a_client_actor_holds_a_private_example(algorithm: str) -> None:
    plan = probed(federated_plan(algorithm))
    actor, known, found, seen = ClientActor(plan, IDS, "loop"), secrets(plan), [], {}
    for name, call in CLIENT_CASES.items():
        found += [f"{name}{leak}" for leak in leaks(call(actor, plan), known, seen)]
    assert found == []


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_no_report_of_a_federation_holds_a_private_example(algorithm: str) -> None:
    plan = small_plan(algorithm)
    with LocalFederation(plan) as federation:
        reports = [*federation, federation.snapshot(), federation.class_losses() if plan.personal else None]
        reports += [federation.uncertainty()] if algorithm in REPORTED else []
        assert leaks(reports, secrets(plan)) == []


@pytest.mark.ray
@pytest.mark.usefixtures("cluster")
def test_no_message_of_the_server_actor_holds_a_private_example(tmp_path: Path) -> None:
    import ray

    from actors.federation import RayFederation

    plan = small_plan("pfedbayes")
    with RayFederation(plan, Execution(clients_per_actor=3)) as federation:
        known = secrets(plan)
        for name in sorted(SERVER_CASES, key="play".__ne__):  # play first: a snapshot of trained clients says more
            folder = [str(tmp_path)] if name == "save" else []
            message = ray.get(getattr(federation.server, name).remote(*folder))
            assert leaks(message, known) == [], name


@pytest.mark.parametrize("part", ["train", "test"])
@pytest.mark.parametrize("field", ["up", "info", "client"])
def test_an_algorithm_that_gives_an_example_away_is_caught(part: str, field: str) -> None:
    plan = small_plan("pfedbayes")
    stolen = getattr(each_of(Shards(loading.load(plan.cfg.data), plan.partition, [2]))[0], f"{part}_x")[3].flatten()

    def hide(leaf: torch.Tensor) -> torch.Tensor:
        return torch.cat([leaf[:101], 0.5 * stolen + 0.1, leaf[101 + len(stolen) :]])

    def finish(*args: Any) -> Any:
        client, up = plan.algorithm.finish(*args)
        client = client._replace(q=client.q._replace(rho=hide(client.q.rho))) if field == "client" else client
        return client, up._replace(mu=hide(up.mu)) if field == "up" else up

    def step(*args: Any) -> Any:
        local, info = plan.algorithm.step(*args)
        return local, info._replace(nll=stolen) if field == "info" else info

    leaky = plan._replace(algorithm=plan.algorithm._replace(step=step, finish=finish))
    found = leaks(settled(ClientActor(gathering(leaky), IDS, "loop"), leaky), secrets(plan))
    assert len(found) == 1
    assert {"up": ".0.up.mu", "info": ".0.info.nll", "client": "rho"}[field] in found[0]


HIDING: dict[str, Callable[[np.ndarray], Any]] = {
    "as it is": lambda x: x,
    "in raw units": lambda x: ((x + 1) * 8).astype(np.uint8),
    "rounded": lambda x: x.astype(np.float16),
    "negative": lambda x: -x,
    "within a longer array": lambda x: np.concatenate([np.arange(7), x, np.arange(9)]),
    "as a column": lambda x: np.stack([np.arange(64), x, np.ones(64)], 1),
    "as a picture": lambda x: x.reshape(1, 8, 8),
    "as numbers in a list": lambda x: {"a": [None, x.tolist()]},
    "as named numbers": lambda x: {f"metric {i}": float(v) for i, v in enumerate(x)},
    "as tensors without dimensions": lambda x: [torch.tensor(v) for v in x],
}


@pytest.mark.parametrize("how", HIDING)
def test_the_detector_finds_an_example_however_it_is_hidden(how: str) -> None:
    known = secrets(small_plan())
    sample = known[0][11]
    assert len(leaks([np.zeros(3), HIDING[how](-sample if how == "negative" else sample)], known)) == 1


def test_the_detector_finds_labels_and_is_silent_about_noise() -> None:
    known, rng = secrets(small_plan()), np.random.default_rng(0)
    assert len(known) > 6
    assert leaks({"y": known[1][0]}, known) == [".y"]
    assert leaks({"y": rng.integers(0, 10, 3000), "x": rng.normal(size=(4, 640)), "one": np.ones(640)}, known) == []


@pytest.mark.parametrize("odd", [b"bytes", "text" * 30, object(), {1, 2}])
def test_what_the_detector_cannot_look_into_is_not_passed(odd: object) -> None:
    with pytest.raises(AssertionError, match="look into it"):
        leaks([np.zeros(3), {"a": odd}], [])
