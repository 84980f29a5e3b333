"""A rank that attends for ever, to be killed or cut off: python -m tests.distributed.lonely RANK STORE TIMEOUT [DIES_AT]"""

import os
import signal
import sys
from datetime import timedelta

import torch
from torch import distributed

from fastmax.distributed import context_parallel_attention


def main(rank: str, store: str, timeout: str, dies_at: str = "-1") -> None:
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=store, rank=int(rank), world_size=2, timeout=timedelta(seconds=float(timeout))
    )
    x = torch.ones(2, 8, 4, requires_grad=True)
    step = 0
    while True:
        context_parallel_attention(x, x, x, is_causal=True, mesh=distributed.group.WORLD).sum().backward()
        if step == int(dies_at):
            os.kill(os.getpid(), signal.SIGKILL)
        step += 1
        print(step, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
