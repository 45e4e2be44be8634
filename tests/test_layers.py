"""The arrows of docs/design.md: what each file imports, and what it may."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MATHS = (
    "models networks recurrent posteriors likelihood minibatches fuse stein densities sites priors particles "
    "indicators probabilities bregman optim variational aggregate metrics rng partition lognormal skewed trees tensors"
)
RUN_TIME = (
    "registry dataconfig config scaling readers covertype leaf text data protocols plan replies messages evaluation "
    "deviation local rounds federation checkpoint checkpoint_files runfolder stores tracking plots client_plots cli "
    "terminal compare result report cells runs groups published tables compare_plots compare_html status"
)
LAYERS = (
    "types",
    MATHS,
    "algorithms selection",
    RUN_TIME,
    "actors",
    "tune",
    "play",
    "launch studies newcomers",
)  # from the bottom up
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names.split()}
OURS = ("fedray", "actors", "tune")
HEAVY = {"mlflow", "matplotlib", "sklearn", "torchvision"}
FILES = [path for package in OURS for path in sorted((ROOT / package).rglob("*.py")) if path.parts[-1] != "__init__.py"]


def module(path):
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


def imports(path):
    """(module, inside a function) of every import; ``from fedray import x`` counts as fedray.x."""
    found = []

    def visit(node, inside):
        inside = inside or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        if isinstance(node, ast.Import):
            found.extend((alias.name, inside) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            whole = node.module == "fedray"
            found.extend((f"fedray.{alias.name}" if whole else node.module, inside) for alias in node.names)
        # What only a type checker reads is not imported.
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            inside = True
        for child in ast.iter_child_nodes(node):
            visit(child, inside)

    visit(ast.parse(path.read_text(encoding="utf-8")), False)
    return found


def rank(name):
    """The layer of a module of ours; a new file must be placed on one."""
    parts = name.split(".")
    return RANK[parts[1] if parts[0] == "fedray" else parts[0]]


@pytest.mark.parametrize("path", FILES, ids=module)
def test_arrows_point_down(path):
    for name, inside in imports(path):
        package = name.split(".")[0]
        if package in OURS and module(path) != "fedray.play":
            assert rank(name) <= rank(module(path)), f"{module(path)} imports {name}"
        if module(path).startswith("fedray.") and package in ("ray", "actors", "tune"):
            assert module(path) == "fedray.play", f"{module(path)} imports {name}"
            assert inside, f"play.py imports {name} outside of a function"
        if module(path).startswith("fedray."):
            assert inside or package not in HEAVY, f"{module(path)} imports {name} at its top"


@pytest.mark.parametrize("name", ["selection", "algorithms"])
def test_plugins_do_not_know_the_run_time_nor_the_other_kind(name):
    for path in sorted((ROOT / "fedray" / name).glob("*.py")):
        for imported, _ in imports(path):
            if imported.startswith("fedray."):
                assert rank(imported) < rank(f"fedray.{name}") or imported.startswith(f"fedray.{name}")


def test_the_package_itself_imports_nothing_of_ours_or_heavy():
    for name, inside in imports(ROOT / "fedray" / "__init__.py"):
        assert inside or name in ("__future__", "os", "typing")
        assert name.split(".")[0] not in {"ray", "actors", "tune"} | HEAVY


def test_the_table_covers_every_file_and_the_walk_sees_every_import():
    assert len(FILES) > 20
    assert {"fedray.types", "torch", "fedray.trees"} <= {name for name, _ in imports(ROOT / "fedray" / "local.py")}
    for path in FILES:
        rank(module(path))
