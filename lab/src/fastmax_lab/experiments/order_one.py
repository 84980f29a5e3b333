"""Order 1 at scale 1, as printed: denominators that may be negative or vanish, and what trainings make of them."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fastmax import standardize
from fastmax.models import FastmaxLM, LMConfig
from fastmax.nn import FastmaxAttention
from fastmax_lab.baselines.fastmax import Fastmax
from fastmax_lab.experiments import images, texts
from fastmax_lab.experiments.items import Item, Workspace
from fastmax_lab.experiments.language_model import LanguageRun, loss_of, spread, windows
from fastmax_lab.experiments.training import train
from fastmax_lab.experiments.vision import VisionConfig, VisionModel
from fastmax_lab.lra.metrics import DivergedError
from fastmax_lab.measurements import Measurement, slug

NAME = "order-one"
SEEDS = (0, 1, 2)
SCALES = ("1", "1/D")
LOOKED_AT = 32
"""Examples whose denominators are taken."""


@dataclass(frozen=True)
class OrderOneRun:
    """`data` is "mnist" or "shakespeare", or generated, "shapes" or "listops"; `scale` is one of `SCALES`."""

    data: str
    scale: str
    seed: int
    steps: int
    batch: int
    lr: float
    width: int
    heads: int
    layers: int = 2
    tokens: int = 0

    @property
    def is_image(self) -> bool:
        return self.data in ("mnist", "shapes")

    @property
    def factor(self) -> float:
        return 1.0 if self.scale == "1" else self.heads / self.width


def runs(budget: str) -> list[OrderOneRun]:
    image: dict[str, Any] = {"data": "mnist", "steps": 900, "batch": 64, "lr": 1e-3, "width": 64, "heads": 2}
    text = {"data": "shakespeare", "steps": 600, "batch": 8, "lr": 4e-3, "width": 128, "heads": 4, "tokens": 128}
    if budget == "quick":
        image |= {"data": "shapes", "steps": 60, "batch": 16, "width": 24}
        text |= {"data": "listops", "steps": 60, "width": 48, "tokens": 64}
    seeds = SEEDS[:1] if budget == "quick" else SEEDS
    return [OrderOneRun(scale=scale, seed=seed, **task) for seed in seeds for task in (image, text) for scale in SCALES]


def items(budget: str, found: Sequence[Measurement]) -> list[Item]:  # noqa: ARG001
    return [item(run) for run in runs(budget)]


def item(run: OrderOneRun) -> Item:
    name = slug(run.data, f"scale{run.scale}".replace("/", "-").lower(), f"seed{run.seed}")
    return Item(NAME, name, asdict(run), partial(measure, run), cost=40.0, threads=1)


def measure(run: OrderOneRun, workspace: Workspace) -> dict[str, Any]:
    """Return the denominators at looks over the training, its losses, and the step at which it diverged, if it did."""
    torch.manual_seed(run.seed)
    generator = torch.Generator().manual_seed(run.seed)
    model, loss, examples = (_images if run.is_image else _text)(run, workspace, generator)
    record: list[Tensor] = []
    _record(model, record)
    looks: list[dict[str, float]] = []
    every = max(1, run.steps // 10)
    progress = workspace.watch(run.steps)

    def look(step: int) -> None:
        record.clear()
        with torch.no_grad():
            model.eval()
            model(examples)
            model.train()
        found = torch.cat([g.flatten() for g in record])
        looks.append(
            {
                "step": step,
                "negative": float((found <= 0).double().mean()),
                "smallest": float(found.abs().min()),
            }
        )

    def watch(step: int, smooth: float) -> bool:
        if step % every == 0:
            look(step)
        return progress(step, smooth)

    look(0)
    groups = [{"params": list(model.parameters()), "weight_decay": 0.01}]
    try:
        trained = train(
            model, groups, loss, lr=run.lr, steps=run.steps, warmup=every, watch=watch
        )  # fmt: skip
    except DivergedError as error:
        return {"looks": looks, "diverged": error.what}
    return trained | {"looks": looks, "diverged": None}


Made = tuple[nn.Module, Callable[[], Tensor], Tensor]


def _images(run: OrderOneRun, workspace: Workspace, generator: torch.Generator) -> Made:
    data = images.load(run.data, workspace.data)
    model = VisionModel("fastmax1", VisionConfig(run.layers, run.width, run.heads, 2 * run.width))
    for layer in model.modules():
        if isinstance(layer, Fastmax):
            layer.scale = run.factor

    def loss() -> Tensor:
        rows = torch.randint(len(data.train), (run.batch,), generator=generator)
        return cross_entropy(model(data.train[rows]), data.train_labels[rows])

    return model, loss, data.test[:LOOKED_AT]


def _text(run: OrderOneRun, workspace: Workspace, generator: torch.Generator) -> Made:
    text = texts.load(run.data, workspace.data)
    config = LMConfig(
        len(text.alphabet), layers=run.layers, width=run.width, heads=run.heads, mlp_ratio=2, order=1, scale=run.factor
    )
    model = FastmaxLM(config, _Recording)

    def loss() -> Tensor:
        starts = torch.randint(len(text.train) - run.tokens - 1, (run.batch,), generator=generator)
        batch = windows(text.train, starts, run.tokens)
        return loss_of(model(batch[:, :-1]), batch)

    held = LanguageRun("fastmax1", tokens=run.tokens)
    return model, loss, windows(text.val, spread(text.val, held)[:LOOKED_AT], run.tokens)[:, :-1]


def denominators(q_hat: Tensor, k_hat: Tensor, scale: float, *, is_causal: bool) -> Tensor:
    """Return g, the sum of 1 + s over the visible keys, divided by their number, (..., N)."""
    f = 1 + scale * q_hat @ k_hat.mT
    keys = torch.ones_like(f).tril() if is_causal else torch.ones_like(f)
    return (f * keys).sum(-1) / keys.sum(-1)


class _Recording(FastmaxAttention):
    """A layer whose denominators are appended to `record`, if that is set."""

    record: list[Tensor] | None = None

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, **options: Any) -> Tensor:
        if self.record is not None and not torch.is_grad_enabled():  # rotary layers normalize before
            self.record.append(denominators(q, k, options["scale"], is_causal=options["is_causal"]))
        o: Tensor = FastmaxAttention.__dict__["_attend"].__func__(q, k, v, mask, **options)
        return o


def _record(model: nn.Module, record: list[Tensor]) -> None:
    """Let every attention of a model append its denominators where no gradient is taken."""
    for layer in model.modules():
        if isinstance(layer, _Recording):
            layer.record = record
        elif isinstance(layer, Fastmax):
            layer.register_forward_pre_hook(partial(_see, record))


def _see(record: list[Tensor], layer: Fastmax, inputs: tuple[Any, ...]) -> None:
    if not torch.is_grad_enabled():
        q, k = (standardize(x) for x in inputs[:2])
        record.append(denominators(q, k, layer.scale, is_causal=False))
