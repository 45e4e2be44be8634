"""Datasets: what is read, what is downloaded, and what is refused."""

import os
import pickle
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from fedray.config import DataConfig, Experiment
from fedray.data import loading, papers
from fedray.data.scaling import within
from fedray.data.shards import Shards
from fedray.types import FedRayError
from tests.helpers import each_of

ROOT = os.environ.get("FEDRAY_DATA_ROOT")
real = pytest.mark.skipif(not ROOT, reason="FEDRAY_DATA_ROOT names no folder with the real datasets")


def rng(seed=0):
    return np.random.default_rng(seed)


def idx(array):
    header = np.array([0x800 + array.ndim, *array.shape], ">u4").tobytes()
    return header + array.astype(np.uint8).tobytes()


def write_mnist(root, train=30, test=20, folder="MNIST"):
    """A random dataset in torchvision's layout; returns pooled images and labels."""
    generator, pooled = rng(), []
    (root / folder / "raw").mkdir(parents=True)
    for part, n in (("train", train), ("t10k", test)):
        x, y = generator.integers(0, 256, (n, 28, 28), dtype=np.uint8), np.arange(n) % 10
        (root / folder / "raw" / f"{part}-images-idx3-ubyte").write_bytes(idx(x))
        (root / folder / "raw" / f"{part}-labels-idx1-ubyte").write_bytes(idx(y))
        pooled.append((x, y))
    return (np.concatenate(arrays) for arrays in zip(*pooled, strict=True))


BATCHES = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]


def write_cifar(root, n=4, dump=lambda batch: pickle.dumps(batch, 4)):
    generator, pooled = rng(), []
    (root / "cifar-10-batches-py").mkdir(parents=True)
    for name in BATCHES:
        x, y = generator.integers(0, 256, (n, 3072), dtype=np.uint8), list(range(n))
        (root / "cifar-10-batches-py" / name).write_bytes(dump({"data": x, "labels": y, "batch_label": name}))
        pooled.append((x.reshape(n, 3, 32, 32), np.array(y)))
    return (np.concatenate(arrays) for arrays in zip(*pooled, strict=True))


def write_npz(path, **arrays):
    np.savez(path, **arrays)
    return DataConfig(name=str(path))


# ---- names and paths ----


def test_an_unknown_dataset_is_refused_with_those_that_are_known():
    for use in (papers.protocol, loading.load):
        with pytest.raises(
            FedRayError,
            match=r"data.name mnits: .*cifar10, .*digits, .*mnist.*sent140.*\.jsonl.*\.npz.*\.csv.*\.parquet",
        ):
            use(DataConfig(name="mnits"))


def test_paths_become_absolute_and_follow_root_then_environment_then_cache(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.delenv("FEDRAY_DATA_ROOT", raising=False)
    assert loading.absolute_paths(DataConfig()).root == Path("/home/me/.cache/fedray")
    monkeypatch.setenv("FEDRAY_DATA_ROOT", "~/sets")
    assert loading.absolute_paths(DataConfig()).root == Path("/home/me/sets")
    assert loading.absolute_paths(DataConfig(root=Path("here"))).root == tmp_path / "here"
    assert loading.absolute_paths(DataConfig(name="my.npz")).name == str(tmp_path / "my.npz")
    assert loading.absolute_paths(DataConfig(name="mnist")).name == "mnist"
    assert loading.absolute_paths(DataConfig(name="~/a.jsonl.gz")).name == "/home/me/a.jsonl.gz"
    assert loading.absolute_paths(DataConfig(embedding=Path("glove.txt"))).embedding == tmp_path / "glove.txt"
    assert loading.absolute_paths(DataConfig()).embedding is None


# ---- reading ----


def test_digits_ship_with_the_package():
    x, y, classes, scaling = loading.load(DataConfig(name="digits"))[:4]
    assert x.shape == (1797, 1, 8, 8)
    assert (x.min(), x.max(), scaling) == (0, 16, within(16))
    assert (y.dtype, classes) == (np.int64, 10)
    assert np.bincount(y).min() == 174
    assert x[0, 0, 0].tolist() == [0, 0, 5, 13, 9, 1, 0, 0]  # the first row of the first digit
    order, pixels = np.arange(1797), x.reshape(1797, 64).astype(int) @ np.arange(64)
    sums = (int(x.sum()), int(order @ y), int(pixels @ y))
    assert sums == (561718, 7264791, 78209954)  # those of sklearn.datasets.load_digits()


@pytest.mark.parametrize(("name", "folder"), [("mnist", "MNIST"), ("fashion_mnist", "FashionMNIST")])
def test_idx_files_are_pooled_training_first(tmp_path, name, folder):
    images, labels = write_mnist(tmp_path, folder=folder)
    x, y, classes, scaling = loading.load(DataConfig(name=name, root=tmp_path))[:4]
    assert np.array_equal(x[:, 0], images)
    assert np.array_equal(y, labels)
    assert (x.shape[1:], y.dtype, classes, scaling) == ((1, 28, 28), np.int64, 10, within(255))


def python2(batch):
    """The bytes of an original batch: Python 2 pickled strings, not bytes, and NumPy's old module name."""
    pickled = pickle.dumps({**batch, "data": "PLACE"}, 0).decode("latin1")
    raw = batch["data"].tobytes()
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I0\ntS'b'\ntR(I1\n(I%d\nI3072\n"
        b"tcnumpy\ndtype\n(S'u1'\nI0\nI1\ntR(I3\nS'|'\nNNNI-1\nI-1\nI0\ntbI00\nT"
        % len(batch["data"])
        + len(raw).to_bytes(4, "little")
        + raw
        + b"tb"
    )
    head, tail = pickled.split("VPLACE\n")
    return (head + "\0").encode("latin1").replace(b"\0", array) + tail.split("\n", 1)[1].encode("latin1")


@pytest.mark.parametrize("dump", [lambda b: pickle.dumps(b, 3), lambda b: pickle.dumps(b, 4), python2])
def test_cifar_batches_are_pooled_training_first(tmp_path, dump):
    images, labels = write_cifar(tmp_path, dump=dump)
    x, y, classes, scaling = loading.load(DataConfig(name="cifar10", root=tmp_path))[:4]
    assert np.array_equal(x, images)
    assert np.array_equal(y, labels)
    assert (x.dtype, y.dtype, classes, scaling) == (np.uint8, np.int64, 10, within(255))


def test_a_batch_stored_in_column_order_is_the_same_images(tmp_path):
    def dump(batch):
        return pickle.dumps({**batch, "data": np.asfortranarray(batch["data"])}, 4)

    images, _ = write_cifar(tmp_path, dump=dump)
    assert np.array_equal(loading.load(DataConfig(name="cifar10", root=tmp_path)).x, images)


def test_npz_images_and_features(tmp_path):
    images = rng().integers(0, 256, (6, 2, 5), dtype=np.uint8)
    labels = np.array([0, 1, 2, 0, 1, 2], np.uint8)
    x, y, classes, scaling = loading.load(write_npz(tmp_path / "a.npz", x=images, y=labels))[:4]
    assert np.array_equal(x, images[:, None])
    assert y.tolist() == labels.tolist()
    assert (y.dtype, classes, scaling) == (np.int64, 3, within(255))
    x, _, _, scaling = loading.load(write_npz(tmp_path / "b.npz", x=images / 7, y=labels))[:4]
    assert (x.dtype, scaling) == (np.float32, None)
    assert np.array_equal(x, (images / 7).astype(np.float32))


# ---- refusing ----


FEATURES = np.zeros((4, 3))


@pytest.mark.parametrize(
    ("arrays", "reason"),
    [
        ({"x": FEATURES}, "it has no array y, but x"),
        ({"y": [0, 1, 0, 1]}, "it has no array x, but y"),
        ({"x": FEATURES, "y": [0, 1, 0]}, r"y has shape \[3\] for 4 examples"),
        ({"x": FEATURES, "y": [1, 1, 1, 1]}, "every example has the label 1"),
        ({"x": np.where(FEATURES == 0, np.nan, 0), "y": [0, 1, 0, 1]}, "NaN"),
        ({"x": FEATURES + np.inf, "y": [0, 1, 0, 1]}, "infinity"),
        ({"x": np.zeros(4), "y": [0, 1, 0, 1]}, r"\[4\]"),
        ({"x": np.zeros((0, 3)), "y": np.zeros(0, int)}, "it has no examples"),
        ({"x": np.array([[{}]], dtype=object), "y": [0]}, "x holds Python objects, such as pandas' texts, lists of"),
        ({"x": FEATURES, "y": np.array(["a", "b", "a", "b"], object)}, r"y holds .* texts as y\.astype"),
    ],
)
def test_an_unusable_npz_is_refused_with_reason_and_remedy(tmp_path, arrays, reason):
    cfg = write_npz(tmp_path / "mine.npz", **arrays)
    with pytest.raises(FedRayError, match=rf"mine\.npz: .*{reason}.*; give an \.npz of x"):
        loading.load(cfg)


@pytest.mark.filterwarnings("ignore:overflow encountered in cast")
def test_numbers_too_large_for_float32_are_refused(tmp_path):
    with pytest.raises(FedRayError, match="too large for float32"):
        loading.load(write_npz(tmp_path / "mine.npz", x=FEATURES + 1e300, y=[0, 1, 0, 1]))


@pytest.mark.parametrize("name", ["mnist", "cifar10", "covertype", "uci-yacht", "femnist"])
def test_a_folder_that_cannot_be_searched_is_named_with_the_remedy(tmp_path, name):
    root = tmp_path / ("x" * 300)  # like a folder of another user, whose tests root would pass
    with pytest.raises(FedRayError, match=rf"^data.root {root}: cannot be searched for {name} \(file name too long\)"):
        loading.load(DataConfig(name=name, root=root))


def test_a_file_that_the_user_may_not_read_is_not_called_another_format(tmp_path, monkeypatch):
    cfg = write_npz(tmp_path / "mine.npz", x=np.zeros((4, 2)), y=np.arange(4) % 2)
    monkeypatch.setattr(np, "load", lambda *a, **k: (_ for _ in ()).throw(PermissionError(13, "Permission denied")))
    with pytest.raises(FedRayError, match=r"mine.npz: it cannot be read: permission denied; let yourself read it, or"):
        loading.load(cfg)


def test_a_damaged_or_missing_npz_is_refused(tmp_path):
    path = tmp_path / "mine.npz"
    cfg = DataConfig(name=str(path))
    with pytest.raises(FedRayError, match=r"mine\.npz: there is no such file; give an \.npz"):
        loading.load(cfg)
    np.savez_compressed(path, x=rng().random((50, 3)), y=np.arange(50) % 2)
    whole = path.read_bytes()
    flipped = whole[:300] + bytes(255 - b for b in whole[300:340]) + whole[340:]
    for damaged in (b"", b"nonsense", whole[:-30], whole[:200], flipped):
        path.write_bytes(damaged)
        with pytest.raises(FedRayError, match=r"mine\.npz: .*; give an \.npz"):
            loading.load(cfg)
    np.save(path.with_suffix(".npy"), np.zeros((2, 2)))
    path.with_suffix(".npy").replace(path)  # an array under an archive's name
    with pytest.raises(FedRayError, match=r"mine\.npz"):
        loading.load(cfg)


@pytest.mark.parametrize("name", ["mnist", "fashion_mnist", "cifar10"])
def test_missing_files_are_named_with_the_remedy(tmp_path, name):
    with pytest.raises(FedRayError, match=rf"data.name {name}: {tmp_path}/.* is missing; add `data.download`"):
        loading.load(DataConfig(name=name, root=tmp_path))


IMAGES, LABELS = "MNIST/raw/train-images-idx3-ubyte", "MNIST/raw/t10k-labels-idx1-ubyte"


NO_IDX, NO_LABELS = "bytes are not an idx file", "its labels are not 20 integers"


@pytest.mark.parametrize(
    ("file", "damage", "reason"),
    [
        (IMAGES, lambda raw: raw[:-3], NO_IDX),
        (IMAGES, lambda raw: raw + b"\0", NO_IDX),
        (IMAGES, lambda raw: b"", NO_IDX),
        (IMAGES, lambda raw: raw[:6], NO_IDX),
        (IMAGES, lambda raw: b"\x1f\x8b" + raw[2:], NO_IDX),  # a gzip file under the plain name
        (IMAGES, lambda raw: raw[:3] + b"\x01" + raw[4:], NO_IDX),
        (IMAGES, lambda raw: raw[:4] + b"\xff\xff\xff\xff" + raw[8:], NO_IDX),
        (IMAGES, lambda raw: idx(np.zeros((30, 32, 32))), NO_IDX),
        (IMAGES, lambda raw: idx(np.zeros((30,))), NO_IDX),
        (LABELS, lambda raw: raw[:-1], NO_IDX),
        (LABELS, lambda raw: idx(np.zeros((19,))), NO_LABELS),  # whole, but one label short
        (LABELS, lambda raw: idx(np.full((20,), 10)), NO_LABELS),
    ],
)
def test_damaged_idx_files_are_refused_by_name(tmp_path, file, damage, reason):
    write_mnist(tmp_path)
    path = tmp_path / file
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(FedRayError, match=rf"{path}: .*{reason}.*; delete it and add `data.download`"):
        loading.load(DataConfig(name="mnist", root=tmp_path))


GOOD = {"data": np.zeros((4, 3072), np.uint8), "labels": [0, 1, 2, 3]}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"nonsense",
        pickle.dumps(GOOD, 4)[:-100],
        pickle.dumps({"data": GOOD["data"]}, 4),
        pickle.dumps({"labels": GOOD["labels"]}, 4),
        pickle.dumps({**GOOD, "data": np.zeros((4, 3071), np.uint8)}, 4),
        pickle.dumps({**GOOD, "data": np.zeros((4, 3072), np.int8)}, 4),
        pickle.dumps({**GOOD, "data": np.zeros((4, 3072))}, 4),
        pickle.dumps({**GOOD, "data": [[0] * 3072] * 4}, 4),
        pickle.dumps({**GOOD, "labels": [0, 1, 2]}, 4),
        pickle.dumps({**GOOD, "labels": [0, 1, 2, 10]}, 4),
        pickle.dumps({**GOOD, "labels": [0, 1, 2, -1]}, 4),
        pickle.dumps({**GOOD, "labels": ["0", "1", "2", "3"]}, 4),
        pickle.dumps({**GOOD, "labels": [[0], 1, 2, 3]}, 4),
        pickle.dumps(7),
        b"cnumpy\ndtype\n(S'u1'\ntR.",
    ],
)
def test_damaged_cifar_batches_are_refused_by_name(tmp_path, content):
    write_cifar(tmp_path)
    path = tmp_path / "cifar-10-batches-py" / "data_batch_3"
    path.write_bytes(content)
    with pytest.raises(FedRayError, match=rf"{path}: .*; delete it and add `data.download`"):
        loading.load(DataConfig(name="cifar10", root=tmp_path))


class Attack:
    def __init__(self, function, argument):
        self.call = (function, (argument,))

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("protocol", [0, 2, 4])
@pytest.mark.parametrize("function", [os.system, eval, np.load, exec])
def test_a_batch_that_wants_to_run_code_is_refused_unrun(tmp_path, function, protocol):
    write_cifar(tmp_path)
    trace = tmp_path / "was_here"
    command = f"touch {trace}" if function is os.system else f"open({str(trace)!r}, 'w')"
    batch = {"data": Attack(function, command), "labels": [0]}
    (tmp_path / "cifar-10-batches-py" / "test_batch").write_bytes(pickle.dumps(batch, protocol))
    with pytest.raises(FedRayError, match=r"test_batch: refused: it asks to call"):
        loading.load(DataConfig(name="cifar10", root=tmp_path))
    assert not trace.exists()


# ---- downloading ----


@pytest.fixture
def torchvision(monkeypatch):
    """A stand-in for torchvision whose datasets are written, not fetched; records the folders."""
    folders = []

    def mnist(folder, download):
        assert download
        folders.append(Path(folder))
        write_mnist(Path(folder), train=40)

    def broken(folder, download):
        raise OSError("no route to host")

    datasets = SimpleNamespace(MNIST=mnist, FashionMNIST=broken, CIFAR10=lambda folder, download: None)
    monkeypatch.setitem(sys.modules, "torchvision", SimpleNamespace(datasets=datasets))
    return folders


def test_a_download_leaves_whole_files_and_nothing_else(tmp_path, torchvision):
    root = tmp_path / "new" / "root"
    assert len(loading.load(DataConfig(name="mnist", root=root, download=True)).y) == 60
    assert len(loading.load(DataConfig(name="mnist", root=root, download=True)).y) == 60
    assert len(torchvision) == 1
    assert [path.name for path in root.iterdir()] == ["MNIST"]


def test_a_download_keeps_the_files_that_are_there(tmp_path, torchvision):
    write_mnist(tmp_path)
    kept = (tmp_path / IMAGES).read_bytes()
    for part in ("images-idx3", "labels-idx1"):
        (tmp_path / f"MNIST/raw/t10k-{part}-ubyte").unlink()
    loading.load(DataConfig(name="mnist", root=tmp_path, download=True))
    assert (tmp_path / IMAGES).read_bytes() == kept


@pytest.mark.parametrize(("name", "reason"), [("fashion_mnist", "no route to host"), ("cifar10", "No such file")])
def test_a_failed_download_says_so(tmp_path, torchvision, name, reason):
    with pytest.raises(FedRayError, match=rf"`data.download`: .*{reason}.*; check the network"):
        loading.load(DataConfig(name=name, root=tmp_path, download=True))
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


# ---- the real datasets ----

MNIST_COUNTS = [6903, 7877, 6990, 7141, 6824, 6313, 6876, 7293, 6825, 6958]


@real
@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "counts", "shape", "mean"),
    [
        ("mnist", MNIST_COUNTS, (70000, 1, 28, 28), 0.1307),
        ("fashion_mnist", [7000] * 10, (70000, 1, 28, 28), 0.2860),
        ("cifar10", [6000] * 10, (60000, 3, 32, 32), 0.4734),
    ],
)
def test_real_datasets_carry_the_papers_largest_split(name, counts, shape, mean):
    dataset = loading.load(DataConfig(name=name))
    assert dataset.x.shape == shape
    assert np.bincount(dataset.y).tolist() == counts
    train = dataset.x[: 50000 if name == "cifar10" else 60000]
    assert train.mean() / 255 == pytest.approx(mean, abs=2e-4)  # the known mean: training comes first
    protocol = papers.protocol(DataConfig(name=name))
    for layout in ("cluster", "window"):
        cfg = Experiment(clients=protocol.clients, data=DataConfig(name=name, size="large", layout=layout))
        partition = papers.deal(cfg, dataset, rng())
        assert {len(part) for part in partition.train} == {5 * protocol.sizes["large"][0]}
    (shard,) = each_of(Shards(dataset, partition, [protocol.clients - 1]))
    assert (shard.train_x.min(), shard.train_x.max()) == (-1, 1)
    assert len(shard.train_y.unique()) == 5


@real
@pytest.mark.data
def test_real_files_read_as_torchvision_reads_them():
    from torchvision.datasets import FashionMNIST

    theirs = FashionMNIST(ROOT, train=False)
    ours = loading.load(DataConfig(name="fashion_mnist"))
    assert np.array_equal(ours.x[60000:, 0], theirs.data.numpy())
    assert np.array_equal(ours.y[60000:], theirs.targets.numpy())
