"""LEAF's format: examples that name their user, pooled by user, and what becomes of texts on the way to a client."""

import gzip
import json
import pickle
from codecs import BOM_UTF8

import numpy as np
import pytest
import torch

from fedray.algorithms.averaging.fedavg import FedAvg
from fedray.algorithms.averaging.fedper import FedPer
from fedray.config import DataConfig, Experiment, ModelConfig, override
from fedray.data import loading, text
from fedray.data.partition import Partition
from fedray.data.shards import Shards
from fedray.federate.in_process import LocalFederation
from fedray.federate.measures import metrics
from fedray.federate.planning import make_plan
from fedray.types import FedRayError
from tests.helpers import each_of


def leaf(users):
    """The content of a .json file; users is {user: [(x, y), ...]}."""
    own = {user: {"x": [x for x, _ in rows], "y": [y for _, y in rows]} for user, rows in users.items()}
    counts = [len(rows) for rows in users.values()]
    return json.dumps({"users": list(users), "num_samples": counts, "user_data": own}).encode()


def lines(rows):
    """The content of a .jsonl file; rows are (user, text, label)."""
    return b"".join(json.dumps({"user": u, "text": t, "label": y}).encode() + b"\n" for u, t, y in rows)


def tweet(words):
    """What LEAF keeps of a tweet: the text is the fifth part."""
    return ["2087", "Sat May 16 23:58:44 UTC 2009", "NO_QUERY", "someone", words, "training"]


def write(root, files):
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)


TRAIN = {"ann": [(tweet("good day"), 1), (tweet("bad day"), 0)], "bob": [(tweet("so bad"), 0)]}
TEST = {"bob": [(tweet("Good!"), 1)], "cy": [(tweet("day"), 1)]}


@pytest.mark.parametrize("folder", ["sent140", "sent140/data"])
def test_training_and_test_files_are_pooled_by_user(tmp_path, folder):
    """As LEAF leaves them, with folders of other stages beside."""
    write(
        tmp_path / folder,
        {
            "train/all_data_niid_05_keep_3_train_9.json": leaf(TRAIN),
            "test/all_data_niid_05_keep_3_test_9.json": leaf(TEST),
            "all_data/all_data.json": leaf(TRAIN | TEST),
            "README.md": b"about it",
        },
    )
    dataset = loading.load(DataConfig(name="sent140", root=tmp_path))
    assert dataset.y.tolist() == [1, 0, 0, 1, 1]
    assert dataset.users.tolist() == [0, 0, 1, 1, 2]
    assert (dataset.classes, dataset.scaling, dataset.input_shape) == (2, None, (25, 50))
    assert dataset.x[:, :3].tolist() == [[1, 2, 0], [3, 2, 0], [4, 3, 0], [1, 5, 0], [2, 0, 0]]
    assert np.array_equal(dataset.vectors, text.vectors(["good", "day", "bad", "so", "!"], None))


ROWS = [(7, "good day", 1), (7, "bad day", 0), (3, "so bad", 0), (7, "Good!", 1), ("7", "day", 1)]


@pytest.mark.parametrize("name", ["mine.jsonl", "mine.jsonl.gz", "mine.json", "mine.json.gz"])
def test_files_of_ones_own_are_read_by_their_ending(tmp_path, name):
    users = {"7": [(t, y) for u, t, y in ROWS if str(u) == "7"], "3": [("so bad", 0)]}
    content = lines(ROWS) + b"\n" if ".jsonl" in name else leaf(users)
    write(tmp_path, {name: gzip.compress(content) if name.endswith(".gz") else content})
    dataset = loading.load(DataConfig(name=str(tmp_path / name)))
    order = np.argsort(dataset.users, kind="stable")
    assert dataset.users[order].tolist() == [0, 0, 0, 0, 1]
    assert dataset.y[order].tolist() == [1, 0, 1, 1, 0]
    assert dataset.classes == 2
    assert (dataset.x[order] > 0).sum(1).tolist() == [2, 2, 2, 1, 2]


def test_files_directly_in_the_folder_are_read_too(tmp_path):
    write(tmp_path / "sent140", {"b.jsonl": lines(ROWS[2:]), "a.jsonl": lines(ROWS[:2])})
    assert loading.load(DataConfig(name="sent140", root=tmp_path)).y.tolist() == [1, 0, 0, 1, 1]


def images(n, seed=0):
    return np.random.default_rng(seed).random((n, 784)).round(3)


def test_femnist_is_images_of_62_classes(tmp_path):
    a, b = images(3), images(2, 1)
    write(
        tmp_path / "femnist/data",
        {
            "train/all_data_0_niid_0_keep_0_train_9.json": leaf({"f0": [(x.tolist(), 61) for x in a], "f1": []}),
            "test/all_data_0_niid_0_keep_0_test_9.json": leaf({"f1": [(x.tolist(), 0) for x in b]}),
        },
    )
    dataset = loading.load(DataConfig(name="femnist", root=tmp_path))
    assert (dataset.x.shape, dataset.x.dtype, dataset.classes) == ((5, 1, 28, 28), np.float32, 62)
    assert np.allclose(dataset.x.reshape(5, 784), np.concatenate([a, b]))
    assert dataset.users.tolist() == [0, 0, 0, 1, 1]
    partition = Partition((np.array([0]),), (np.array([4]),))
    (shard,) = each_of(Shards(dataset, partition, [0]))
    assert np.allclose(shard.train_x.flatten().numpy(), 2 * a[0] - 1, atol=1e-6)


@pytest.mark.parametrize("x", [[[0.5, -2.0], [7.0, 1e3]], [[0.5] * 783 + [1.5]] * 2, [[0.5] * 783 + [-0.5]] * 2])
def test_other_numbers_are_features(tmp_path, x):
    write(tmp_path, {"mine.json": leaf({"a": list(zip(x, (0, 1), strict=True))})})
    dataset = loading.load(DataConfig(name=str(tmp_path / "mine.json")))
    assert dataset.x.tolist() == x
    assert (dataset.scaling, dataset.vectors, dataset.classes) == (None, None, 2)


def test_vectors_come_from_the_file_that_is_given(tmp_path):
    write(tmp_path, {"sent140/a.jsonl": lines(ROWS), "v.txt": b"bad 1 2\ngood 3 4\n"})
    for name in ("sent140", str(tmp_path / "sent140/a.jsonl")):
        dataset = loading.load(DataConfig(name=name, root=tmp_path, embedding=tmp_path / "v.txt"))
        assert dataset.input_shape == (25, 2)
        assert dataset.vectors[dataset.x[1, :3]].tolist() == [[1, 2], [0, 0], [0, 0]]


GOOD = leaf({"a": [("x", 0), ("y", 1)]})
DAMAGED = {
    "cut": (GOOD[:-3], "it is not JSON: expecting .*, line 1"),
    "empty": (b"", "it is not JSON"),
    "binary": (b"\xff\xfe\x00", r"not text in UTF-8"),
    "deep": (b"[" * 100_000, "RecursionError|not JSON"),
    "other": (b'{"users": ["a"]}', "it has no 'user_data'"),
    "number": (b"7", "no JSON object of users"),
    "absent user": (b'{"users": ["a", "b"], "user_data": {"a": {"x": ["x"], "y": [0]}}}', "it has no 'b'"),
    "short labels": (b'{"users": ["a"], "user_data": {"a": {"x": ["x", "y"], "y": [0]}}}', "user a does not have"),
    "no list": (b'{"users": ["a"], "user_data": {"a": {"x": "xy", "y": [0, 1]}}}', "user a does not have"),
    "no object": (b'{"users": ["a"], "user_data": {"a": "x"}}', "user_data of a is no JSON object of x and y"),
    "no examples": (leaf({"a": []}), "it has no examples"),
    "list label": (leaf({"a": [("x", [0]), ("y", [1, 2])]}), "rows have different lengths, from 1 to 2"),
    "mixture": (leaf({"a": [("x", 0)], "b": [([1.0], 1)]}), "some are numbers"),
    "ragged": (leaf({"a": [([1.0, 2.0], 0), ([1.0], 1)]}), "rows have different lengths, from 1 to 2"),
    "two widths": (leaf({"a": [([1.0, 2.0], 0)], "b": [([1.0], 1)]}), "from 1 to 2 numbers"),
    "nan": (b'{"users": ["a"], "user_data": {"a": {"x": [[NaN], [1]], "y": [0, 1]}}}', "neither a text nor"),
    "objects": (leaf({"a": [({}, 0), ({}, 1)]}), "where numbers belong"),
    "a user twice": (
        b'{"users": ["a", "b", "a"], "user_data": {"a": {"x": [[1]], "y": [0]}, "b": {"x": [[2]], "y": [1]}}}',
        "lists a twice",
    ),
    "a user that is not listed": (
        b'{"users": ["a"], "user_data": {"a": {"x": [[1], [2]], "y": [0, 1]}, "b": {"x": [[2]], "y": [1]}}}',
        "user_data holds b, whom users does not list",
    ),
    "short tweet": (leaf({"a": [(["x", "y"], 0), (["x", "y"], 1)]}), "a list of 2 fields, but its text is the 5th"),
}


def test_labels_may_be_words_and_users_keep_their_names(tmp_path):
    write(tmp_path, {"mine.json": leaf({"ann": [("x", "sad"), ("y", "glad")], "bob": [("z", "sad")]})})
    dataset = loading.load(DataConfig(name=str(tmp_path / "mine.json")))
    assert (dataset.y.tolist(), dataset.users.tolist()) == ([1, 0, 1], [0, 0, 1])
    assert dataset.names[:2] == (("glad", "sad"), ("ann", "bob"))


def test_users_of_one_class_are_examples_for_a_trained_model(tmp_path):
    write(tmp_path, {"mine.json": leaf({"ann": [([0.5, 2.0], 1), ([0.1, 1.0], 1)]})})
    cfg = DataConfig(name=str(tmp_path / "mine.json"))
    assert (loading.load(cfg, 3).y.tolist(), loading.load(cfg, 3).classes) == ([1, 1], 3)
    with pytest.raises(FedRayError, match="every example has the label 1"):
        loading.load(cfg)


def test_users_may_be_numbers(tmp_path):
    content = json.loads(leaf({"7": [("x", 1), ("y", 0)], "8": [("z", 1)]})) | {"users": [7, 8]}
    write(tmp_path, {"mine.json": json.dumps(content).encode()})
    dataset = loading.load(DataConfig(name=str(tmp_path / "mine.json")))
    assert (dataset.users.tolist(), dataset.names.users) == ([0, 0, 1], ("7", "8"))


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_file_is_refused_by_name(tmp_path, damage):
    content, reason = DAMAGED[damage]
    write(tmp_path, {"mine.json": content})
    with pytest.raises(FedRayError, match=rf"mine\.json: .*({reason}).*; give a file in LEAF's format"):
        loading.load(DataConfig(name=str(tmp_path / "mine.json")))


@pytest.mark.parametrize(
    "content",
    [b"{", b"7\n", b'{"user": 1, "text": "x"}\n', b'{"user": 1, "text": 7, "label": 0}\n', b"", lines(ROWS)[:-9]],
)
def test_damaged_lines_are_refused_by_name(tmp_path, content):
    write(tmp_path, {"mine.jsonl": content})
    with pytest.raises(FedRayError, match=r"mine\.jsonl: .*; give a file in LEAF's format"):
        loading.load(DataConfig(name=str(tmp_path / "mine.jsonl")))


@pytest.mark.parametrize(("name", "content"), [("mine.json", GOOD), ("mine.jsonl", lines(ROWS))])
def test_a_byte_order_mark_and_line_ends_of_windows_change_nothing(tmp_path, name, content):
    write(tmp_path, {name: content, "v.txt": b"bad 1 2\n"})
    write(tmp_path, {f"w/{name}": BOM_UTF8 + content.replace(b"\n", b"\r\n"), "w/v.txt": BOM_UTF8 + b"bad 1 2\r\n"})
    plain, other = (
        loading.load(DataConfig(name=str(folder / name), embedding=folder / "v.txt" if name == "mine.jsonl" else None))
        for folder in (tmp_path, tmp_path / "w")
    )
    assert np.array_equal(plain.x, other.x)
    assert np.array_equal(plain.vectors, other.vectors)
    assert plain.names == other.names


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (b"[1, 2]", "is no JSON object of user, text and label"),
        (b'{"user": "a", "text": "x"}', "has no label"),
        (b'{"user": null, "text": "x", "label": 1}', "has no user"),  # else it would be a client named None
    ],
)
def test_a_line_that_is_no_example_is_refused_by_its_number(tmp_path, row, reason):
    write(tmp_path, {"mine.jsonl": lines(ROWS) + row})
    with pytest.raises(FedRayError, match=rf"mine\.jsonl: line {len(ROWS) + 1} {reason}; give"):
        loading.load(DataConfig(name=str(tmp_path / "mine.jsonl")))


def test_the_damaged_line_is_the_one_of_the_file(tmp_path):
    write(tmp_path, {"mine.jsonl": lines(ROWS) + b'\n{"user": 1, "text": "x"'})
    with pytest.raises(FedRayError, match=rf"mine\.jsonl: line {len(ROWS) + 2} is not JSON: expecting ',' delimiter"):
        loading.load(DataConfig(name=str(tmp_path / "mine.jsonl")))


def test_damaged_compression_and_missing_files_are_refused_by_name(tmp_path):
    write(tmp_path, {"cut.jsonl.gz": gzip.compress(lines(ROWS))[:-12], "no.json.gz": GOOD})
    for name in ("cut.jsonl.gz", "no.json.gz", "nowhere.json"):
        with pytest.raises(FedRayError, match=rf"{name}: .*; give a file in LEAF's format"):
            loading.load(DataConfig(name=str(tmp_path / name)))
    for name in ("sent140", "femnist"):
        with pytest.raises(FedRayError, match=rf"data.name {name}: {tmp_path}/{name} has no .json.*`data.root`"):
            loading.load(DataConfig(name=name, root=tmp_path))
    write(tmp_path / "sent140", {"train/a.json": GOOD, "test/b.json": b"{"})
    with pytest.raises(FedRayError, match=r"sent140/test/b\.json: "):
        loading.load(DataConfig(name="sent140", root=tmp_path))


def test_an_embedding_without_texts_is_refused(tmp_path):
    (tmp_path / "v.txt").write_text("good 1 2\n")
    with pytest.raises(FedRayError, match=r"data.embedding .*v\.txt: the dataset has no texts"):
        loading.load(DataConfig(embedding=tmp_path / "v.txt"))


# ---- in a federation ----


def opinions(tmp_path, users=4, each=20):
    """Texts whose opinion is in one of their words, of users who write about matters of their own."""
    rng, rows = np.random.default_rng(0), []
    for user in range(users):
        for label in rng.integers(0, 2, each):
            words = [f"matter{user}", ("bad", "good")[label], *(f"word{i}" for i in rng.integers(0, 50, 3))]
            rows.append((user, " ".join(rng.permutation(words)), int(label)))
    write(tmp_path, {"tweets.jsonl": lines(rows)})
    return rows, str(tmp_path / "tweets.jsonl")


def experiment(name, **settings):
    settings = {"rounds": 3, "local_steps": 15, "batch_size": 8, "algorithm": FedAvg(lr=0.5)} | settings
    return Experiment(data=DataConfig(name=name), model=ModelConfig(lstm_hidden=4), **settings)


def test_a_client_sees_its_own_texts_as_vectors(tmp_path):
    rows, name = opinions(tmp_path)
    plan = make_plan(experiment(name))
    assert (plan.clients, plan.cfg.clients_per_round, plan.cfg.model.name) == (4, 4, "lstm")
    assert plan.cfg.data.partition == "natural"
    dataset = loading.load(plan.cfg.data)
    for client, shard in enumerate(each_of(Shards(dataset, plan.partition, range(4)))):
        own = [t for u, t, _ in rows if u == client]
        x, words = text.numbered(own)
        vectors = text.vectors(words, None)[x]
        assert (shard.train_x.shape, shard.test_x.shape) == ((15, 25, 50), (5, 25, 50))
        seen = torch.cat([shard.train_x, shard.test_x]).numpy()
        assert {v.tobytes() for v in seen} == {v.tobytes() for v in vectors}


def test_vectors_are_in_no_network_and_in_no_message(tmp_path):
    rows, name = opinions(tmp_path)
    words = text.numbered(t for _, t, _ in rows)[1]
    table = text.vectors(words, None)
    (tmp_path / "v.txt").write_text(
        "".join(f"{w} {' '.join(map(repr, v.tolist()))}\n" for w, v in zip(words, table[1:], strict=True))
    )
    made, read = (
        make_plan(override(experiment(name, rounds=1, local_steps=3), {"data.embedding": path}))
        for path in (None, tmp_path / "v.txt")
    )
    assert made.model.size == read.model.size == 2 * (16 * 54 + 32) + 2 * (16 * 12 + 32) + 17 * 400 + 401 * 2
    assert len(pickle.dumps(read)) < table.nbytes  # the plan goes to every process
    a, b = (next(iter(LocalFederation(plan))) for plan in (made, read))
    assert a.train == pytest.approx(b.train, rel=1e-4)  # the file holds what the hash makes


def test_the_lstm_learns_what_the_texts_say(tmp_path):
    _, name = opinions(tmp_path, users=6, each=60)
    rounds = list(LocalFederation(make_plan(experiment(name, clients=3, rounds=5, eval_every=5))))
    assert metrics.summarize(metrics.pooled(rounds[-1].global_)).accuracy > 0.9


def test_users_are_the_clients_unless_a_number_is_given(tmp_path):
    _, name = opinions(tmp_path)
    assert make_plan(experiment(name, clients=2)).clients == 2
    plan = make_plan(experiment(name, clients_per_round=3))
    assert (plan.clients, plan.cfg.clients_per_round) == (4, 3)
    plan = make_plan(experiment(name, novel_clients=1, algorithm=FedPer()))
    assert (plan.clients, plan.cfg.clients_per_round) == (4, 3)
    with pytest.raises(FedRayError, match=r"clients_per_round 5: .*all 4 clients"):
        make_plan(experiment(name, clients_per_round=5))
