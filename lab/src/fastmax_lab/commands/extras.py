"""What a command needs beyond torch and numpy: by the extra that brings it, and told before any work is done."""

from importlib.util import find_spec

PACKAGES = {
    "lra": {"accelerate": "accelerate", "safetensors": "safetensors", "tensorboard": "tensorboard", "PIL": "pillow"},
    "hf": {"transformers": "transformers", "safetensors": "safetensors"},
    "report": {"matplotlib": "matplotlib"},
}
"""Of each extra: modules, and the packages that have them."""


def need(extra: str) -> None:
    """OSError if something of the extra is not installed."""
    missing = [package for module, package in PACKAGES[extra].items() if find_spec(module) is None]
    if missing:
        raise OSError(
            f"{', '.join(missing)} missing: run pip install 'fastmax-lab[{extra}]', or '.[{extra}]' in a clone"
        )
