"""The lab imports the library's public names. The private ones that it may use are listed here."""

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

import fastmax_lab

ROOT = Path(fastmax_lab.__file__).parent
PUBLIC = {
    "fastmax": (),  # with every name in its __all__
    "fastmax.distributed": (),
    "fastmax.integrations.transformers": (),
    "fastmax.nn": (),
    "fastmax.state": (),
    "fastmax.api": ("fastmax_attention",),
    "fastmax.models": ("FastmaxLM", "LMConfig"),
}
PRIVATE = {
    # files that are whole or absent, and the format of checkpoints
    "fastmax": ("_tensor_file", "backends", "core", "validation"),
    "fastmax._atomic_file": ("check_target", "remove_partial", "write_whole"),
    "fastmax.dropout": ("MODES",),
    # the baselines: layers with another attention in place of Fastmax
    "fastmax.core": ("default_scale", "normalized", "similarity"),
    "fastmax.nn.options": ("layer_scale",),
    "fastmax.nn.sharded": ("Sequence", "SharesSequence"),
    # benchmarks of one backend or one form, and the operations that they count
    "fastmax.backends": ("batched", "native", "resolve", "triton"),
    "fastmax.backends.batched": ("flex",),
    "fastmax.backends.triton": ("both_passes",),
    "fastmax.backends.triton.device": ("architecture",),
    "fastmax.backends.triton.tiles": ("Tiles", "padded", "tiles_for"),
    "fastmax.backends.triton.work": ("Launch",),
    "fastmax.call": ("Call", "InputGrads", "Options", "OutputGrads", "accumulation_dtype"),
    "fastmax.distributed.scan": ("gathers", "rounds"),
    "fastmax.features": ("feature_count",),
    "fastmax.integrations.transformers.options": ("CHILD", "QKProjection"),
    "fastmax.plan": ("RULE", "Plan", "cheaper_form", "kernel_chunk"),
}


def imports() -> Iterator[tuple[str, str, str]]:
    """Yield file, module and name of each import from the library; the name is empty for `import module`."""
    for path in sorted(ROOT.rglob("*.py")):
        file = path.relative_to(ROOT).as_posix()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names = [(alias.name, "") for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [(str(node.module), alias.name) for alias in node.names]
            else:
                continue
            yield from ((file, module, name) for module, name in names if module.partition(".")[0] == "fastmax")


def is_allowed(module: str, name: str) -> bool:
    """Return True for `import` of a public module, a public name, or a private one that is listed."""
    if not name:
        return module in PUBLIC
    public = PUBLIC.get(module, ()) or (importlib.import_module(module).__all__ if module in PUBLIC else ())
    return name in public or name.startswith("__version") or name in PRIVATE.get(module, ())


def test_private_names_are_listed() -> None:
    found = list(imports())
    assert len(found) > 50
    wrong = [
        f"{file} imports {name or 'all'} of {module}" for file, module, name in found if not is_allowed(module, name)
    ]
    assert not wrong, wrong


def test_a_private_name_that_is_not_listed_is_found() -> None:
    assert is_allowed("fastmax", "fastmax_attention")
    for module, name in (("fastmax", "ops"), ("fastmax.ops", ""), ("fastmax.plan", "steps"), ("fastmax.state", "file")):
        assert not is_allowed(module, name), (module, name)
