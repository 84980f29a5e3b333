"""Print the kernels that PyTorch's compiler writes around FlexAttention: `python -m tests.backends.flex_kernels`.

No GPU is needed, and nothing runs: the compiler writes its Triton code for an A100, from tensors on the CPU, and is stopped
before it compiles that. A process of its own, because the driver of Triton and a part of the compiler are replaced.
"""

import json
import re
from collections.abc import Callable
from typing import Any

import torch
from torch._inductor import config
from torch._inductor.graph import GraphLowering
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from fastmax._torch_private import keep_channels_static
from fastmax.backends.batched.flex import PLAIN, Operands, Raw, Settings

SETTINGS = Settings(order=2, is_causal=True, normalize="standardize", scale=1.0)


class Driver:
    """Stand-in for the driver of a GPU."""

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, _: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 80, 32)

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")

    def map_python_to_cpp_type(self, kind: str) -> str:
        return kind


class WrittenError(Exception):
    """The code is written."""


def code_of(function: Callable[..., Any], *arguments: Any) -> str:
    """Return the code for one call."""
    codes: list[str] = []
    codegen = GraphLowering.codegen

    def stop(self: GraphLowering) -> Any:
        codes.append(codegen(self)[0].value)
        raise WrittenError

    GraphLowering.codegen = stop  # type: ignore[method-assign]
    try:
        torch.compile(function, dynamic=True)(*arguments)
    except Exception as error:  # the compiler wraps what stops it
        if not codes:
            raise error
    finally:
        GraphLowering.codegen = codegen  # type: ignore[method-assign]
    return codes[0]


def summary(code: str) -> dict[str, Any]:
    """Return the number of launches, and the dtypes of tensors that are stored for each token and channel."""
    body = code[code.index("def call(self") :]
    stored = re.findall(r"empty_strided_cpu\(\(\w+, \w+, \w+, 64\), .*?torch\.(\w+)\)", body)
    return {"launches": len(re.findall(r"triton_\w+\.run\(", body)), "stored": sorted(stored)}


def main() -> None:
    driver.set_active(Driver())
    config.cpu_backend = "triton"
    config.compile_threads = 1
    config.force_disable_caches = True
    shape = (2, 4096, 16, 64)
    q, k, v, *grads = (keep_channels_static(torch.zeros(shape, dtype=torch.bfloat16).transpose(1, 2)) for _ in range(6))
    raw = Raw(q, k, v)
    with torch.no_grad():
        found = {
            "prepare": summary(code_of(PLAIN.prepare, raw, SETTINGS)),
            "gradients": summary(code_of(PLAIN.gradients, raw, Operands(*grads), SETTINGS)),
        }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
