"""Imports point downward only: every module is parsed, and each import is looked up in the table of layers."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

import fastmax

ROOT = Path(fastmax.__file__).parent
REPOSITORY = Path(__file__).parent.parent
CONVERSION = {f"examples/{name}.py" for name in ("convert_common", "convert_minilm", "swap_encoder")}
"""Conversion is part of the lab, so these import it when they start."""

USERS_OF_THE_LAB = CONVERSION | {
    "tests/backends/offline.py",
    "tools/bf16_errors.py",
    "tools/compute_numbers.py",
    "tools/example_outputs.py",
    "tools/find_numbers.py",
    "tools/gpu_roofline.py",
    "tools/readme_figure.py",
    "tools/site_hooks.py",
    "examples/char_lm.py",
    "examples/constant_memory.py",
    "examples/spoken_digits.py",
}
"""Outside of lab/, these alone import it. The other examples do so where they compare with it, inside a function."""

LAYERS: list[list[set[str]]] = [
    [{"_atomic_file", "_tensor_file"}, {"_torch_private"}],
    [{"core", "features", "dropout", "call", "decay", "both_directions", "window"}],
    [{"plan"}, {"parts"}],
    [{"backends"}],
    [{"validation", "reference"}],
    [{"ops", "_eager_path"}],
    [{"api"}],
    [{"models", "nn", "state", "integrations", "distributed"}],
    [{"costs"}],
    [{"fastmax"}],
    [{"doctor"}],
    [{"__main__"}],
]
"""The groups of modules from the bottom to the top. A module imports its own group and the layers below.

Groups of one layer do not import one another.
"fastmax" is the package itself, `fastmax/__init__.py`."""

WITHIN_A_BACKEND = ("Sums", "Tile", "Work")
"""Classes that several backends have by one name, for the same job. Backends never import one another."""

HEAVY = ("models", "distributed", "integrations")
OPTIONAL = (
    "accelerate", "rich", "tyro", "PIL", "triton", "transformers", "safetensors", "peft", "trl", "onnx",
    "onnxscript", "onnxruntime", "matplotlib",
)  # fmt: skip


class Import(NamedTuple):
    source: str
    target: str
    lazy: bool  # inside of a function, or for type checkers only


def modules() -> dict[str, Path]:
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = ("fastmax", *path.relative_to(ROOT).with_suffix("").parts)
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(name: str, path: Path, known: dict[str, Path]) -> Iterator[Import]:
    """Yield the imports of our modules. `from a import b` is an import of a.b where that is a module."""
    tree = ast.parse(path.read_text())
    lazy = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.If)
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        targets: list[str] = []
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name} has a relative import"
            whole = [f"{node.module}.{alias.name}" for alias in node.names]
            targets = [target if target in known else str(node.module) for target in whole]
        for target in targets:
            if target.partition(".")[0] == "fastmax":
                assert target in known, f"{name} imports {target}, which is not there"
                yield Import(name, target, id(node) in lazy)


@pytest.fixture(scope="module")
def graph() -> list[Import]:
    known = modules()
    return [edge for name, path in known.items() for edge in imports(name, path, known)]


def place(module: str) -> tuple[int, set[str]]:
    part = module.split(".")[1] if "." in module else module
    for height, layer in enumerate(LAYERS):
        for group in layer:
            if part in group:
                return height, group
    raise AssertionError(f"{module} is in no layer: give it a place in the table")


def allowed(edge: Import) -> bool:
    (above, own), (below, other) = place(edge.source), place(edge.target)
    return below < above or own is other


def test_imports_point_downward(graph: list[Import]) -> None:
    assert len(graph) > 100
    for module in modules():
        place(module)
    wrong = [f"{edge.source} imports {edge.target}" for edge in graph if not allowed(edge)]
    assert not wrong, wrong


def test_the_library_and_its_tests_need_no_lab() -> None:
    found = set()
    for folder in ("src", "tests", "examples", "tools"):
        for path in (REPOSITORY / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if not isinstance(node, ast.Import | ast.ImportFrom):
                    continue
                names = [a.name for a in node.names] if isinstance(node, ast.Import) else [str(node.module)]
                if any(name.partition(".")[0] in ("fastmax_lab", "lab") for name in names):
                    name = path.relative_to(REPOSITORY).as_posix()
                    found.add(name)
                    is_late = node.col_offset > 0 or name in CONVERSION
                    assert folder != "examples" or is_late, f"{name} imports the lab when it starts"
    assert found == USERS_OF_THE_LAB


def test_the_table_sees_what_is_wrong() -> None:
    for source, target in (
        ("fastmax.api", "fastmax.nn"),
        ("fastmax.core", "fastmax"),
        ("fastmax.plan", "fastmax.backends.native"),
        ("fastmax._torch_private", "fastmax._tensor_file"),
    ):
        assert not allowed(Import(source, target, lazy=False)), (source, target)
    with pytest.raises(AssertionError, match="in no layer"):
        place("fastmax.attic")


def test_no_module_needs_itself(graph: list[Import]) -> None:
    """Cycles of imports that run when a module is imported. Python itself imports a package before what is in it."""
    needs: dict[str, set[str]] = {}
    for edge in graph:
        if not edge.lazy and not f"{edge.source}.".startswith(f"{edge.target}."):
            needs.setdefault(edge.source, set()).add(edge.target)
    try:
        TopologicalSorter(needs).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_backends_do_not_import_one_another(graph: list[Import]) -> None:
    def backend(module: str) -> str | None:
        parts = module.split(".")
        return parts[2] if parts[1:2] == ["backends"] and len(parts) > 2 else None

    crossing = [e for e in graph if backend(e.source) and backend(e.target) not in (None, backend(e.source))]
    assert not crossing, crossing


def test_importing_fastmax_imports_no_extra() -> None:
    listed = "import sys, fastmax; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", listed], capture_output=True, text=True, check=True)
    imported = set(done.stdout.split())
    assert "fastmax.api" in imported
    unwanted = {*OPTIONAL, *(f"fastmax.{name}" for name in HEAVY)}
    assert not imported & unwanted


def test_no_two_classes_share_a_name() -> None:
    places: dict[str, set[str]] = {}
    for folder in ("src", "lab/src"):
        for path in (REPOSITORY / folder).rglob("*.py"):
            place = path.relative_to(REPOSITORY / folder).as_posix()
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.ClassDef):
                    by_backend = place.startswith("fastmax/backends/") and node.name in WITHIN_A_BACKEND
                    places.setdefault(node.name, set()).add("a backend" if by_backend else place)
    assert len(places) > 200
    shared = {name: sorted(found) for name, found in places.items() if len(found) > 1}
    assert not shared, shared
