"""Examples, a partition and layers that the caller gives are used everywhere, and refused where they do not fit."""

from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse
import torch
from PIL import Image
from torch import nn
from torchvision.datasets import ImageFolder
from torchvision.transforms import Resize

from fedray.algorithms.averaging.fedavg import FedAvg
from fedray.config import DataConfig, Execution, Experiment
from fedray.data import given, loading, tables
from fedray.data.digests import of_program
from fedray.data.partition import Partition
from fedray.data.readers import Dataset
from fedray.data.scaling import Scaling
from fedray.federate.in_process import LocalFederation
from fedray.federate.planning import make_plan
from fedray.running.predictor import Predictor
from fedray.types import FedRayError
from tests.data.test_own import FEATURES, KINDS, N

CHANCE = 0.1


def noise(n=1797):
    """As many examples as the digits have, of pure noise with random labels."""
    rng = np.random.default_rng(0)
    return Dataset(rng.standard_normal((n, 1, 8, 8)).astype(np.float32), rng.integers(0, 10, n), 10, None)


def plan_of(dataset, **settings):
    return make_plan(
        Experiment(algorithm=FedAvg(lr=0.1), rounds=3, data=DataConfig(partition="iid"), **settings), dataset
    )


def accuracy(metrics):
    found = metrics.global_
    return float(found.correct.sum() / found.examples.sum())


def test_nothing_is_learned_of_noise_in_process():
    *_, last = LocalFederation(plan_of(noise()))
    assert abs(accuracy(last) - CHANCE) < 0.1


@pytest.mark.ray
def test_nothing_is_learned_of_noise_in_actors(cluster):
    from actors.federation import RayFederation

    with RayFederation(plan_of(noise()), Execution(clients_per_actor=5)) as federation:
        *_, last = federation
    assert abs(accuracy(last) - CHANCE) < 0.1


def test_a_given_partition_is_used():
    parts = [np.arange(start, start + 40) for start in (0, 40, 80)]
    partition = Partition(tuple(part[:30] for part in parts), tuple(part[30:] for part in parts))
    plan = make_plan(Experiment(algorithm=FedAvg()), noise(), partition)
    assert (plan.clients, plan.cfg.clients_per_round) == (3, 3)
    assert plan.partition is partition
    shards = LocalFederation(plan).cohort.block.shards
    assert shards.sizes.tolist() == [30, 30, 30]


@pytest.mark.parametrize(
    ("train", "test", "clients", "match"),
    [
        ([[0, 1]], [[1, 2]], None, "example 1 occurs twice"),
        ([[0, 1]], [[5000]], None, "client 0 has example 5000 to test, and the examples are 0 to 1796"),
        ([[0, 1]], [[-1]], None, "client 0 has example -1 to test"),
        ([[0, 1]], [[2], [3]], None, "one list for training and one for testing"),
        ([[0, 1], [2]], [[3], []], None, "a list is empty"),
        ([[0.0]], [[1.0]], None, "flat int64"),
        ([[0, 1]], [[2]], 2, "clients 2: the partition has 1"),
    ],
)
def test_a_partition_that_does_not_fit_is_refused(train, test, clients, match):
    train, test = (
        tuple(np.array(part) if part else np.array(part, np.int64) for part in parts) for parts in (train, test)
    )
    with pytest.raises(FedRayError, match=match):
        make_plan(Experiment(algorithm=FedAvg(), clients=clients, clients_per_round=1), noise(), Partition(train, test))


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"x": "abc"}, "x is not an array"),
        ({"x": np.full((1797, 3), np.nan)}, "NaN or infinity"),
        ({"y": np.zeros(5, int)}, "labels are not 1797"),
        ({"y": np.full(1797, 10)}, "number 10 classes"),
        ({"classes": "ten"}, "dataset: "),
        ({"users": np.zeros(3)}, "users are not 1797"),
        ({"users": np.zeros(1797)}, "users are not 1797"),
        ({"users": np.arange(1797) - 1}, "users are not 1797"),
        ({"users": np.arange(1797) // 2 * 2}, "without gaps"),
    ],
)
def test_examples_that_do_not_fit_are_refused(changes, match):
    with pytest.raises(FedRayError, match=match):
        plan_of(noise()._replace(**changes))
    with pytest.raises(FedRayError, match="dataset: x has shape"):
        plan_of((1, 2))


def test_given_layers_are_the_network_and_stay_as_they_are():
    layers = nn.Sequential(nn.Flatten(), nn.Sequential(nn.Linear(64, 5), nn.Tanh()), nn.Linear(5, 10))
    plan = make_plan(Experiment(algorithm=FedAvg(), data=DataConfig(partition="iid")), layers=layers)
    assert plan.model.size == 65 * 5 + 6 * 10
    assert layers[2].weight.device.type == "cpu"
    with pytest.raises(FedRayError, match="layers=int: is not a network"):
        make_plan(Experiment(algorithm=FedAvg()), layers=3)  # type: ignore[arg-type]


def test_examples_that_have_a_name_are_not_digested():
    """Sweeps and studies on Ray load a dataset once for all their runs: these are the runs of one process."""
    cfg = Experiment(algorithm=FedAvg())
    assert make_plan(cfg, loading.load(cfg.data)).digests == make_plan(cfg).digests == {}


@pytest.mark.parametrize(
    ("setting", "value"), [("classes", 2), ("embedding", "/nope"), ("download", True), ("root", "/nope")]
)
def test_settings_of_files_are_refused_with_examples_of_ones_own(setting, value):
    data = DataConfig(name="given", partition="iid", **{setting: value})
    words = rf"^data.{setting} {value}: is for data in files; leave it out with data of your own"
    with pytest.raises(FedRayError, match=words):
        make_plan(Experiment(algorithm=FedAvg(), data=data), noise())
    plan = make_plan(Experiment(algorithm=FedAvg(), data=DataConfig(name="given", partition="iid")), noise())
    assert make_plan(plan.cfg, noise()).cfg == plan.cfg  # which has its root


def test_a_program_is_the_same_with_other_comments_and_another_with_other_words():
    program = of_program("x = 1\n\n\ndef f():\n    # it\n    return x\n")
    assert of_program("# first\nx = 1\ndef f():\n\n    return x  ") == program
    assert of_program("x = 2\ndef f():\n    return x\n") != program
    assert of_program("x = 1\ndef f():\n    return 'x'\n") != program
    assert of_program("") != program


def test_owners_that_differ_in_validation_or_wrong_labels_have_other_digests():
    def owners(**changes):
        parts = [np.arange(start, start + 40) for start in (0, 40, 80)]
        partition = Partition(tuple(part[:20] for part in parts), tuple(part[30:] for part in parts))
        return make_plan(Experiment(algorithm=FedAvg()), noise(), partition._replace(**changes)).digests["data.owners"]

    held = tuple(np.arange(start, start + 10) for start in (20, 60, 100))
    wrong = np.array([[0, 1]])
    found = [owners(), owners(validation=held), owners(relabel=wrong), owners(relabel=wrong + 1)]
    assert len(set(found)) == 4
    assert found[0] == "001f8c84f41b"  # as it always was


@pytest.mark.parametrize("kind", [">f4", ">i2"])
def test_numbers_of_another_byte_order_are_the_same_examples(kind):
    x = np.round(100 * FEATURES)
    units = Scaling(np.array(1.0, ">f4"), np.array(2.0, ">f4"))
    plan = plan_of(Dataset(x.astype(kind), KINDS, 3, units), clients=2, clients_per_round=2)
    with LocalFederation(plan) as federation:
        next(iter(federation))
        snapshot = federation.snapshot()
    assert np.array_equal(plan.dataset().x, x)
    run = Predictor(plan, snapshot)
    assert torch.equal(run.predict(x.astype(kind)).probs, run.predict(x).probs)


@pytest.mark.filterwarnings("error")
def test_labels_may_be_floats_of_half_precision():
    assert given.given((FEATURES, KINDS.astype(np.float16))).y.tolist() == KINDS.tolist()


class Torch(torch.utils.data.Dataset):
    def __init__(self, *items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, k):
        if isinstance(self.items[k], Exception):
            raise self.items[k]
        return self.items[k]


def test_items_of_a_torch_dataset_are_read_or_named():
    good = [(torch.from_numpy(FEATURES[k]), int(KINDS[k])) for k in range(N)]
    found = given.given(Torch(*good))
    assert np.allclose(found.x, FEATURES)
    assert found.y.tolist() == KINDS.tolist()
    for item, reason in (
        (OSError("no such image"), r"dataset: item 60 of this torch Dataset cannot be read \(no such image\); mend it"),
        ((torch.zeros(4, requires_grad=True), 1), "dataset: x is no array; give a NumPy array, a tensor on the CPU"),
        ((Image.new("RGB", (2, 2)).quantize(), 1), r"x is an image with a palette.*; give image\.convert\('RGB'\)"),
        (7, "dataset: the items of this torch Dataset are not pairs"),
    ):
        with pytest.raises(FedRayError, match=reason):
            given.given(Torch(*good, item))
    with pytest.raises(FedRayError, match=r"x is a sparse matrix; give x\.toarray\(\)"):
        given.given((scipy.sparse.csr_matrix(FEATURES), KINDS))


def test_a_folder_of_images_keeps_the_names_of_its_classes_also_in_a_part_of_it(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (3, 4, 5, 6, 3), np.uint8)
    for name, images in zip(("ant", "bee", "cat"), pixels, strict=True):
        (tmp_path / name).mkdir()
        for k, image in enumerate(images):
            Image.fromarray(image).save(tmp_path / name / f"{k}.png")
    photos = ImageFolder(str(tmp_path), transform=Resize((10, 12)))
    found = given.given(photos)
    assert (found.names.classes, found.classes, found.y.tolist()) == (
        ("ant", "bee", "cat"),
        3,
        [0] * 4 + [1] * 4 + [2] * 4,
    )
    assert (found.x.shape, found.x.dtype) == ((12, 3, 10, 12), np.uint8)
    assert np.array_equal(given.given(ImageFolder(str(tmp_path))).x, np.moveaxis(pixels.reshape(12, 5, 6, 3), -1, 1))
    part = given.given(torch.utils.data.Subset(photos, [0, 9]))  # whose classes are numbered as those of the whole
    assert (part.names.classes, part.classes, part.y.tolist()) == (("ant", "bee", "cat"), 3, [0, 2])
    flying = given.given(ImageFolder(str(tmp_path), target_transform=lambda y: int(y == 1)))  # of another question
    assert (flying.names.classes, flying.classes) == ((), 2)


@pytest.mark.parametrize("names", [None, "ab", ["a"], ["a", "a"], [0, 1], ["a", "b"]])
def test_what_names_no_classes_of_the_labels_is_left_alone(names):
    few = Torch(*((torch.ones(2) * k, k % 3) for k in range(12)))
    few.classes = names
    assert (given.given(few).classes, given.given(few).names.classes) == (3, ())


def test_a_dataset_of_hugging_face():
    datasets = pytest.importorskip("datasets", reason="an optional package")
    features = datasets.Features({"label": datasets.ClassLabel(names=["ant", "bee", "cat", "dog"])})
    table = datasets.Dataset.from_dict({"label": KINDS.tolist()}, features=features)
    table = table.add_column("a", FEATURES[:, 0]).add_column("b", FEATURES[:, 1])
    plan = make_plan(Experiment(algorithm=FedAvg(), clients=2, data=DataConfig(partition="iid")), table)
    assert (plan.model.classes, plan.names.classes) == (4, ("ant", "bee", "cat", "dog"))
    assert np.allclose(plan.given.x, FEATURES[:, :2])
    image = datasets.Features({"image": datasets.Image(), "label": features["label"]})
    pixels = np.arange(N * 64, dtype=np.uint8).reshape(N, 8, 8)
    stored = datasets.Dataset.from_dict({"image": list(pixels), "label": KINDS.tolist()}, features=image)
    assert np.array_equal(tables.from_hugging_face(stored).x, pixels[:, None])


class Unlabelled:
    """What is used of a dataset of Hugging Face, whose package may be missing; -1 says that a label is not known."""

    def __init__(self):
        self.column_names = ["a", "label"]
        self.features = {"a": None, "label": SimpleNamespace(names=["ant", "bee", "cat", "dog"])}

    def with_format(self, kind):
        return self

    def __getitem__(self, rows):
        return {"a": FEATURES[rows, 0], "label": KINDS[rows] - 1}


def test_examples_without_a_label_of_hugging_face_are_refused():
    with pytest.raises(ValueError, match="label lacks 20 of its values; fill them in, or leave these examples out"):
        tables.from_hugging_face(Unlabelled())


class Pictures:
    """The same of a dataset with a column of images; None is an image that is missing."""

    def __init__(self, *images, kind=None, names=("image", "label")):
        self.images, self.kind, self.column_names = images, kind, list(names)
        self.features = {"image": type("Image", (), {})(), "label": None}

    def with_format(self, kind):
        return Pictures(*self.images, kind=kind, names=self.column_names)

    def remove_columns(self, names):
        return Pictures(*self.images, kind=self.kind, names=set(self.column_names) - set(names))

    def __getitem__(self, rows):
        images = self.images if self.kind is None else [np.asarray(each) for each in self.images]
        columns = {"image": list(images), "label": np.arange(len(images)) % 2}
        return columns[rows] if isinstance(rows, str) else {name: columns[name] for name in self.column_names}


COLOURS = [Image.fromarray(pixels) for pixels in np.random.default_rng(0).integers(0, 256, (4, 5, 6, 3), np.uint8)]


@pytest.mark.parametrize(
    ("modes", "reason"),
    [
        ("P P P P", r"image is an image with a palette, whose numbers are no colours; give image\.convert\('RGB'\)"),
        ("L L L P", "image is an image with a palette"),
        ("LA LA LA LA", r"image is a grey image with opacity, .*; give image\.convert\('L'\) or 'RGBA'"),
        ("L L L 1", "image has images of PIL's modes 1 and L; give all of them image"),
        ("RGB RGB RGB HSV", "image has images of PIL's modes HSV and RGB"),
        ("L L L", "image lacks 1 of its values; fill them in"),
    ],
)
def test_images_whose_numbers_are_no_brightness_are_refused(modes, reason):
    """Their numbers fit into one array, and would be read as if they were."""
    images = [image.convert(mode) for image, mode in zip(COLOURS, modes.split(), strict=False)]
    with pytest.raises(ValueError, match=reason):
        tables.from_hugging_face(Pictures(*images, *[None] * (4 - len(images))))
    if len(images) == 4:
        with pytest.raises(FedRayError, match=reason.replace("image is", "x is").replace("image has", "x has")):
            given.given(Torch(*((image, k % 2) for k, image in enumerate(images))))


def test_images_of_hugging_face_are_their_pixels():
    found = tables.from_hugging_face(Pictures(*COLOURS))
    assert np.array_equal(found.x, np.stack([np.moveaxis(np.asarray(image), -1, 0) for image in COLOURS]))
