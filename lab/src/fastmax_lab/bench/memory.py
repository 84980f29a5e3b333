"""Peak memory of a forward and backward pass in a separate process: `python -m fastmax_lab.bench.memory '{...}'`."""

import ctypes
import json
import resource
import subprocess
import sys
from pathlib import Path

import torch

from fastmax import fastmax_attention


def peak(*, tokens: int, head_dim: int, order: int, is_causal: bool, backend: str) -> dict[str, int]:
    """Return bytes of (q, k, v, o, do, dq, dk, dv), of the process before they were made, and of the process at its peak."""
    call = json.dumps(
        {"tokens": tokens, "head_dim": head_dim, "order": order, "is_causal": is_causal, "backend": backend}
    )
    command = [sys.executable, "-m", "fastmax_lab.bench.memory", call]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"measuring memory at {call} failed:\n{done.stderr}")
    result: dict[str, int] = json.loads(done.stdout)
    return result


def _run(*, tokens: int, head_dim: int, order: int, is_causal: bool, backend: str) -> dict[str, int]:
    def pass_over(n: int) -> int:
        q, k, v = (torch.randn(1, 1, n, head_dim).requires_grad_() for _ in range(3))
        o = fastmax_attention(q, k, v, is_causal=is_causal, order=order, backend=backend)
        do = torch.ones_like(o)
        o.backward(do)  # type: ignore[no-untyped-call]
        tensors = (q, k, v, o, do, q.grad, k.grad, v.grad)
        return sum(x.numel() * x.element_size() for x in tensors if x is not None)

    pass_over(1024)  # libraries load and pools grow at the first call
    before = reset_peak()
    tensors = pass_over(tokens)
    return {"tensors": tensors, "before": before, "peak": current_peak()}


def free_at_once() -> None:
    """Return freed memory to the system at once, if the C library can, so that it does not hide a later peak."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(-3, 1 << 16)  # M_MMAP_THRESHOLD: larger blocks are mapped one by one


def reset_peak() -> int:
    """Return the resident bytes. From here on peaks are counted, if the system can."""
    clear = Path("/proc/self/clear_refs")
    if clear.exists():
        clear.write_text("5")
    return current_peak()


def current_peak() -> int:
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM"):
                return int(line.split()[1]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


if __name__ == "__main__":
    print(json.dumps(_run(**json.loads(sys.argv[1]))))
