"""The architecture as imports: a room is a folder, or a file directly in fedray/; MAY_IMPORT says what it imports."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# Command lines; so are tune, compare/__main__, studies/__main__ and truth/__main__.
DOORS = "launch status newcomers serve"
MAY_IMPORT = {
    "types": "",
    "terminal": "types",
    "arrays": "types",
    "nets": "arrays types",
    "bayes": "nets arrays types",
    "algorithms": "bayes nets arrays types",
    "selection": "arrays types",
    "config": "types",
    "registry": "types",  # which finds the plug-ins of the other rooms by the names of their folders
    "cli": "registry config terminal types",
    "data": "registry config types",
    "federate": "data config registry nets arrays types",
    "actors": "federate data config registry arrays terminal types",
    "running": "actors federate data cli config registry nets arrays terminal types",
    "compare": "running federate cli config registry terminal types",
    "tune": "running actors federate data cli config registry arrays terminal types",
    "library": "compare running federate data config registry arrays terminal types",
    "studies": "tune compare running federate cli config registry terminal types",
    "truth": "running federate data cli config registry nets terminal types",
    "doors": "running actors federate data cli config registry arrays terminal types",
}
OURS = ("fedray", "actors", "tune")
HEAVY = {"mlflow", "matplotlib", "sklearn", "torchvision"}
FILES = [
    path for package in OURS for path in sorted((ROOT / package).rglob("*.py")) if path != ROOT / "fedray/__init__.py"
]


def module(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room(name):
    """The room of a module of ours."""
    parts = name.split(".")
    found = parts[1] if parts[0] == "fedray" else parts[0]
    return "doors" if found in DOORS.split() else found


def imports(path):
    """(module, inside a function) of every import; ``from fedray import x`` counts as fedray.x."""
    found = []

    def visit(node, inside):
        inside = inside or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        if isinstance(node, ast.Import):
            found.extend((alias.name, inside) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            whole = (ROOT / (node.module or "").replace(".", "/")).is_dir()
            found.extend((f"{node.module}.{alias.name}" if whole else node.module, inside) for alias in node.names)
        # What only a type checker reads is not imported.
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            return
        for child in ast.iter_child_nodes(node):
            visit(child, inside)

    visit(ast.parse(path.read_text(encoding="utf-8")), False)
    return found


def wrong(importer, imported):
    """Whether a module of ours may not import another."""
    mine, other = room(importer), room(imported)
    return mine != other and other not in MAY_IMPORT[mine].split()


@pytest.mark.parametrize("path", FILES, ids=module)
def test_a_room_imports_only_what_it_may(path):
    for name, inside in imports(path):
        package = name.split(".")[0]
        if package in OURS and name not in OURS:
            assert not wrong(module(path), name), f"{module(path)} imports {name}"
        if path.is_relative_to(ROOT / "fedray"):
            assert package != "ray", f"{module(path)} imports Ray, which only actors/ and tune/ may"
            assert inside or package not in ("actors", "tune"), f"{module(path)} imports {name} outside of a function"
            assert inside or package not in HEAVY, f"{module(path)} imports {name} at its top"


def test_the_table_has_no_arrow_upward():
    rooms = list(MAY_IMPORT)
    for name, allowed in MAY_IMPORT.items():
        for below in allowed.split():
            assert rooms.index(below) < rooms.index(name), f"{name} is listed before {below}"


def test_a_planted_upward_import_is_found():
    assert wrong("fedray.arrays.trees", "fedray.federate.plan")
    assert wrong("fedray.algorithms.averaging.fedavg", "fedray.selection.uniform")
    assert wrong("fedray.federate.rounds", "actors.cohort")
    assert wrong("fedray.running.session", "tune.sweep")
    assert not wrong("fedray.federate.plan", "fedray.arrays.trees")


def test_rooms_are_small_and_every_module_of_ours_lies_in_one():
    for package in ("fedray", "actors", "tune"):
        for folder in [ROOT / package, *(path for path in (ROOT / package).rglob("*") if path.is_dir())]:
            modules = list(folder.glob("*.py"))
            assert len(modules) <= 15, f"{folder} has {len(modules)} modules"
    entries = {path.name for path in (ROOT / "fedray").iterdir()} - {"__pycache__", "__init__.py", "py.typed"}
    folders = {name for name in entries if (ROOT / "fedray" / name).is_dir()}
    for kind in (folders, entries - folders):
        assert len(kind) <= 20, sorted(kind)
    assert {room(module(path)) for path in FILES} == set(MAY_IMPORT)


def test_no_import_circle():
    graph = {module(path): {name for name, inside in imports(path) if not inside} for path in FILES}
    known = set(graph)
    edges = {
        name: {target for found in targets for target in (found, found.rpartition(".")[0]) if target in known - {name}}
        for name, targets in graph.items()
    }
    done: set[str] = set()

    def walk(name, path):
        assert name not in path, f"a circle: {' -> '.join([*path[path.index(name) :], name])}"
        if name in done:
            return
        for target in sorted(edges[name]):
            if not name.startswith(f"{target}."):  # a module may import its own package's names
                walk(target, [*path, name])
        done.add(name)

    for name in graph:
        walk(name, [])


def test_the_package_itself_imports_nothing_of_ours_or_heavy():
    for name, inside in imports(ROOT / "fedray" / "__init__.py"):
        assert inside or name in ("__future__", "importlib", "os", "typing")
        assert name.split(".")[0] not in {"ray", "actors", "tune"} | HEAVY


def test_the_walk_sees_every_import():
    assert len(FILES) > 20
    found = {name for name, _ in imports(ROOT / "fedray" / "federate" / "block.py")}
    assert {"fedray.types", "torch", "fedray.arrays.trees"} <= {
        name.removesuffix(".Batch").removesuffix(".require") for name in found
    }
