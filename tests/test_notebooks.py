"""The notebooks run from the first cell to the last, at a tiny size, and are kept with what they showed."""

import re
from pathlib import Path
from typing import Any

import pytest

nbformat = pytest.importorskip("nbformat")
pytest.importorskip("ipykernel")

EXAMPLES = Path(__file__).parent.parent / "examples"
TINY: dict[str, dict[str, Any]] = {
    "attention_maps.ipynb": {"steps": 10, "batch": 2, "half": 4},
    "decoding.ipynb": {"contexts": (16, 64), "repeats": 2},
}


def notebook(name: str) -> Any:
    return nbformat.read(EXAMPLES / name, as_version=4)


def test_there_are_two() -> None:
    assert {path.name for path in EXAMPLES.glob("*.ipynb")} == set(TINY)


@pytest.mark.slow
@pytest.mark.parametrize("name", TINY)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_it_runs(name: str, tmp_path: Path) -> None:
    from nbclient import NotebookClient

    if name == "attention_maps.ipynb":
        pytest.importorskip("fastmax_lab", reason="it compares with softmax")
    found = notebook(name)
    (sizes,) = [cell for cell in found.cells if "parameters" in cell.metadata.get("tags", [])]
    assert set(re.findall(r"^(\w+) =", sizes.source, re.MULTILINE)) == set(TINY[name])
    sizes.source = "\n".join(f"{key} = {value}" for key, value in TINY[name].items())
    NotebookClient(found, timeout=900, resources={"metadata": {"path": str(tmp_path)}}).execute()
    pictures = [o for cell in found.cells for o in cell.get("outputs", []) if "image/png" in o.get("data", {})]
    assert pictures


@pytest.mark.parametrize("name", TINY)
def test_it_is_kept_with_its_outputs(name: str) -> None:
    code = [cell for cell in notebook(name).cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1)), "run from the top, in order"
    assert any("image/png" in o.get("data", {}) for cell in code for o in cell.outputs)
    assert not any(o.output_type == "error" or o.get("name") == "stderr" for cell in code for o in cell.outputs)
    assert (EXAMPLES / name).stat().st_size < 300_000
