"""The public names: those that modules list in `__all__`, and a few of modules without such a list."""

import importlib

MODULES = ("fastmax", "fastmax.distributed", "fastmax.integrations.transformers", "fastmax_lab.conversion")
MORE = (
    "fastmax.models.FastmaxLM",
    "fastmax.models.LMConfig",
    "fastmax.integrations.onnx.export_onnx",
    "fastmax.state.WindowState",
)


def public_names() -> set[str]:
    """Return the full names of all that is for users."""
    listed = {f"{module}.{name}" for module in MODULES for name in importlib.import_module(module).__all__}
    return listed | set(MORE)
