"""The file name is the name, and a broken file fails loudly."""

import sys
from pathlib import Path

import pytest

from fedray import algorithms, registry, selection
from fedray.types import Algorithm, FedRayError, Selection


@pytest.mark.parametrize(
    ("package", "table"), [(algorithms, registry.algorithms()), (selection, registry.selections())]
)
def test_every_file_is_registered_under_its_name_and_summarized(package, table):
    files = {path.stem for path in Path(package.__path__[0]).glob("[!_]*.py")}
    assert set(table) == files
    assert list(table) == sorted(table)
    assert all(record.summary for record in table.values())


def test_a_config_names_its_algorithm_even_if_it_inherits_from_anothers():
    for name, record in registry.algorithms().items():
        assert registry.algorithm_name(record.config()) == name


def test_settings_add_to_a_record_and_take_from_it():
    for record in registry.algorithms().values():
        assert registry.algorithm_of(record.config()).config is record.config
    for name in ("fedavg", "fedprox"):
        record = registry.algorithms()[name]
        plain, tuned = (registry.algorithm_of(record.config(ft=ft)) for ft in (0, 1))
        assert plain.predict_personal is None
        assert tuned.predict_personal is record.predict_personal is not None
        assert tuned.step is plain.step is record.step


def test_an_unknown_name_lists_the_known_ones():
    assert isinstance(registry.pick(registry.selections(), "--selection", "uniform"), Selection)
    with pytest.raises(FedRayError, match=r"--selection 'best'.*uniform"):
        registry.pick(registry.selections(), "--selection", "best")


@pytest.mark.parametrize(
    ("source", "error", "match"),
    [
        ("ALGORITHM = 3", FedRayError, r"broken\.bad: ALGORITHM is 3, not an instance of Algorithm; "),
        ("", FedRayError, r"broken\.bad: ALGORITHM is None"),
        ("import no_such_module", ModuleNotFoundError, "no_such_module"),
    ],
)
def test_a_broken_file_fails_loudly(tmp_path, monkeypatch, source, error, match):
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "__init__.py").touch()
    (tmp_path / "broken" / "bad.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    import broken

    try:
        with pytest.raises(error, match=match):
            registry._discover(broken, "ALGORITHM", Algorithm)
    finally:
        for name in [name for name in sys.modules if name.split(".")[0] == "broken"]:
            del sys.modules[name]
