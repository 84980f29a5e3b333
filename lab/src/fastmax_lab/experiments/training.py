"""A short training of a small model, from a seed alone: AdamW, warmup and cosine, the same batches for every attention."""

from collections.abc import Callable
from math import cos, isfinite, pi
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

from fastmax.models import FastmaxLM, LMConfig
from fastmax.nn import FastmaxAttention, ForgetGate
from fastmax_lab.baselines.softmax_layer import SoftmaxAttention
from fastmax_lab.lra.metrics import DivergedError

Watch = Callable[[int, float], bool]
"""A function of the step and the smoothed loss that returns True to stop."""
CURVE_POINTS = 60
"""Number of points of the smoothed training loss, evenly over the steps."""
Wrap = Callable[[type[FastmaxAttention]], type[FastmaxAttention]]
ATTENTIONS: dict[str, dict[str, Any]] = {
    "softmax": {"normalize": False, "decay": None},
    "softmax, standardized": {"normalize": True, "decay": None},
    "softmax, gated": {"normalize": False, "decay": "gated"},
    "fastmax1": {"order": 1, "decay": None},
    "fastmax2": {"order": 2, "decay": None},
    "fastmax2, paper's scale": {"order": 2, "scale": 1.0, "decay": None},
    "fastmax2, learned scale": {"order": 2, "learn_scale": True, "decay": None},
    "fastmax4": {"order": 4, "decay": None},
    "fastmax2, decay": {"order": 2, "decay": "learned"},
    "fastmax2, gated": {"order": 2, "decay": "gated"},
}
"""Options of `LMConfig` by attention. The default scale is 1 / sqrt(D), for order 1 it is 1 / D; "gated" is the forget gate,
"decay" one learned decay per head."""


def make_model(
    attention: str,
    seed: int,
    config: LMConfig,
    wrap: Wrap = lambda layer: layer,
) -> FastmaxLM:
    """Make the model. Models of one seed start from the same weights. `wrap` may change the layer's class."""
    torch.manual_seed(seed)
    settings = {name: getattr(config, name) for name in config.__dataclass_fields__} | ATTENTIONS[attention]
    layer = SoftmaxAttention if attention.startswith("softmax") else FastmaxAttention
    return FastmaxLM(LMConfig(**settings), wrap(layer))


def train(
    model: nn.Module,
    groups: list[dict[str, Any]],
    loss_of: Callable[[], Tensor],
    *,
    lr: float,
    steps: int,
    warmup: int,
    watch: Watch = lambda _step, _loss: False,
) -> dict[str, Any]:
    """Return the smoothed training loss, its curve, the seconds and the norm of every tenth gradient.

    The training ends early where `watch` says so.

    Raises:
        DivergedError: a loss is not finite.
    """
    optimizer = torch.optim.AdamW(groups, lr, betas=(0.9, 0.95))
    smooth, start = 0.0, perf_counter()
    norms: list[list[float]] = []
    losses: list[list[float]] = []
    model.train()
    for step in range(steps):
        rate = lr * min(1.0, (step + 1) / warmup) * (0.05 + 0.95 * 0.5 * (1 + cos(pi * step / steps)))
        for group in optimizer.param_groups:
            group["lr"] = rate
        loss = loss_of()
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 10 == 0:
            norms.append([step + 1, norm.item()])
        value = loss.item()
        smooth = value if step == 0 else 0.98 * smooth + 0.02 * value
        if (step + 1) % max(1, steps // CURVE_POINTS) == 0:
            losses.append([step + 1, smooth])
        if not isfinite(value):
            raise DivergedError(f"the loss is {value} at step {step + 1}")
        if watch(step + 1, smooth):
            break
    seconds = round(perf_counter() - start, 1)
    return {
        "train_loss": smooth,
        "steps_done": step + 1,
        "seconds": seconds,
        "loss_curve": losses,
        "gradient_norms": norms,
    }


@torch.no_grad()
def reaches(model: nn.Module, tokens: Tensor) -> list[list[float]] | None:
    """Return by layer and head the tokens until a key has faded to 1 / e, from the mean of its decays on these tokens.

    None of a model without gates.
    """
    gates = [module for module in model.modules() if isinstance(module, ForgetGate)]
    if not gates:
        return None
    found: list[list[float]] = []
    hooks = [
        gate.register_forward_hook(
            lambda gate, _inputs, decay: found.append([round(x, 1) for x in gate.reach(decay).tolist()])
        )
        for gate in gates
    ]
    model(tokens)
    for hook in hooks:
        hook.remove()
    return found
