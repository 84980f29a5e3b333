"""convert: a pretrained softmax model becomes a Fastmax model, in two stages."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import deepcopy
from itertools import islice
from pathlib import Path
from time import perf_counter, process_time

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from fastmax._progress import Progress
from fastmax.integrations.transformers.configure import configure
from fastmax.integrations.transformers.conversion import checkpoint, layers, losses
from fastmax.integrations.transformers.conversion.batches import Batch, on, split, tokens_of, without_cache
from fastmax.integrations.transformers.conversion.parameters import learning
from fastmax.integrations.transformers.conversion.recipe import Recipe, Stage
from fastmax.integrations.transformers.conversion.report import Conversion

TRANSFER = Stage(steps=200, lr=1e-3)
DISTILL = Stage(steps=200, lr=2e-4, scale_lr=1e-2, gate_lr=1e-2, train="all")
MEMORY = (2.0, 7.0)
BETAS = (0.9, 0.98)


def convert(
    teacher: PreTrainedModel,
    batches: Iterable[Batch],
    *,
    order: int = 2,
    decay: str | None = None,
    memory: tuple[float, float] = MEMORY,
    normalize: bool | str | None = None,
    learn_scale: bool = True,
    windows: Mapping[str, int] | None = None,
    transfer: Stage = TRANSFER,
    distill: Stage = DISTILL,
    loss: str | losses.Loss = "auto",
    held_out: int = 2,
    checkpoint_path: Path | str | None = None,
    save_every: int = 100,
    watch: Callable[[str, int, PreTrainedModel], None] | None = None,
    progress: bool = True,
) -> Conversion:
    """A Fastmax model that does what `teacher` does, as nearly as it learns to; `teacher` itself stays as it is.

    First every attention layer alone learns, on the inputs that it has in the teacher, the outputs that it has there: its
    queries and keys, one scale per head, and its gate. Then the whole learns the outputs of the whole. Nothing is random:
    the same teacher and batches give the same student.

    Args:
        teacher: of any architecture that uses transformers' attention interface, encoder or decoder, in fp32, in evaluation
            mode and with attn_implementation="sdpa". Conversion holds it and the student in memory.
        batches: what the model takes, as dictionaries of tensors: lists, a DataLoader, a generator that is long enough.
            They are passed over as often as the steps ask. Tokens that `attention_mask` hides do not count.
        order, decay, memory, normalize: of the student, as in `configure`. For causal models take decay="gated".
        learn_scale: learn one scale per head.
        windows: layers that keep softmax over so many of the last tokens, by the names of their attention modules.
        transfer, distill: how long and how fast the two stages learn, and what.
        loss: of the second stage: "logits" (divergence of the predictions), "hidden" (hidden states), "embeddings" (mean-
            pooled outputs and hidden states), or a function of the student's output, the teacher's output and the batch;
            "auto" is "logits" where the model has a head, else "hidden".
        held_out: so many of the first batches are not trained on; the errors that are reported are those on them.
        checkpoint_path: a file; a conversion with the same settings goes on from it. Written every `save_every` steps and
            after each stage.
        watch: called with the stage, the number of steps done in it and the student, after each step, and at the start with
            "before" and 0: to measure the student on the way.
        progress: show a bar on standard error.
    """
    _check(teacher, transfer)
    aside, stream = split(batches, held_out)
    held = [on(teacher.device, batch) for batch in aside]
    with torch.no_grad():
        loss_function = losses.chosen(loss, teacher(**held[0], **without_cache(teacher)))
    recipe = Recipe(
        order=order,
        decay=decay,
        memory=(memory[0], memory[1]),
        normalize=normalize,
        learn_scale=learn_scale,
        windows=tuple(sorted((windows or {}).items())),
        transfer=transfer,
        distill=distill,
        loss=losses.name_of(loss),
        held_out=held_out,
    )
    student = deepcopy(teacher)
    configure(student, order, normalize=normalize, learn_scale=learn_scale, decay=decay, memory=memory)
    for name, tokens in (windows or {}).items():
        configure(student, order, normalize=normalize, window=tokens, layers=[name])
    run = _Run(
        teacher,
        student,
        recipe,
        loss_function,
        stream,
        held,
        None if checkpoint_path is None else Path(checkpoint_path),
    )
    run.save_every, run.watch = save_every, watch
    run.all(progress)
    return Conversion.of(student.requires_grad_(True), recipe, run.position)


def _check(teacher: PreTrainedModel, transfer: Stage) -> None:
    if teacher.training:
        raise ValueError("the teacher is in training mode, where dropout blurs what it does: call teacher.eval()")
    if teacher.config._attn_implementation != "sdpa":
        raise ValueError(
            f'the teacher must use attn_implementation="sdpa", it has {teacher.config._attn_implementation!r}: '
            'call teacher.set_attn_implementation("sdpa")'
        )
    if teacher.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"weights are trained, so the teacher must be in float32, it is in {teacher.dtype}")
    if transfer.train == "all":
        raise ValueError('in the first stage only attention learns: transfer.train must not be "all"')


class _Run:
    """The stages in turn, from wherever a checkpoint says."""

    save_every = 100
    watch: Callable[[str, int, PreTrainedModel], None] | None = None

    def __init__(
        self,
        teacher: PreTrainedModel,
        student: PreTrainedModel,
        recipe: Recipe,
        loss: losses.Loss,
        stream: Iterator[Batch],
        held: list[dict[str, Tensor]],
        path: Path | None,
    ) -> None:
        self.teacher, self.student, self.recipe, self.loss, self.stream, self.held = (
            teacher, student, recipe, loss, stream, held,
        )  # fmt: skip
        self.path = path
        self.layers = layers.pairs(student, teacher)
        self.stages = {"transfer": recipe.transfer, "distill": recipe.distill}
        self.changed = {name for stage in self.stages.values() for name in learning(student, stage)[0]}
        self.position = checkpoint.Position()
        self.optimizer_state: dict[str, Tensor] = {}
        if path is not None and path.exists():
            self.position, self.optimizer_state = checkpoint.load(path, recipe, student)
        done = self.position.step + (recipe.transfer.steps if self.position.stage == "distill" else 0)
        for _ in islice(stream, done):
            pass

    def all(self, progress: bool) -> None:
        now = self.position
        if "before" not in now.errors:
            now.errors["before"], now.losses["before"] = self.held_out_errors(), self.held_out_loss()
            if self.watch is not None:
                self.watch("before", 0, self.student)
        total = sum(stage.steps for stage in self.stages.values())
        past = 0
        names = list(self.stages)
        with Progress(total, "converting") as bar:
            for name, stage in self.stages.items():
                said = (lambda step, text, past=past: bar.show(past + step, text)) if progress else (lambda *_: None)
                if names.index(name) >= names.index(now.stage):
                    self.learn(name, stage, said)
                past += stage.steps

    def learn(self, name: str, stage: Stage, say: Callable[[int, str], None]) -> None:
        now = self.position
        if now.stage != name:
            now.stage, now.step = name, 0
        _, groups = learning(self.student, stage)
        optimizer = torch.optim.AdamW(groups, weight_decay=0.0, betas=BETAS)
        checkpoint.restore(optimizer, self.student, self.optimizer_state)
        self.optimizer_state = {}
        clock, cpu = perf_counter(), process_time()
        while now.step < stage.steps:
            batch = on(self.student.device, next(self.stream))
            for group in optimizer.param_groups:
                group["lr"] = group["top"] * stage.warmth(now.step)
            optimizer.zero_grad()
            error = self.imitate(batch) if name == "transfer" else self.distil(batch, groups)
            optimizer.step()
            now.step += 1
            _add(now.tokens, name, tokens_of(batch))
            _add(now.seconds, name, -clock + (clock := perf_counter()))
            _add(now.cpu_seconds, name, -cpu + (cpu := process_time()))
            now.curve.append([name, now.step, error])
            say(now.step, f"{name}, error {error:.4f}")
            if now.step % self.save_every == 0 and now.step < stage.steps:
                self.save(optimizer)
            if self.watch is not None:
                self.watch(name, now.step, self.student)
                clock, cpu = perf_counter(), process_time()
        if name not in now.losses:
            if name == "transfer":
                now.errors[name] = self.held_out_errors()
            now.losses[name] = self.held_out_loss()
            self.save(None)

    def imitate(self, batch: Batch) -> float:
        """One step of the first stage: the mean error of the layers."""
        errors = layers.layer_errors(self.student, self.layers, batch, learn=True)
        return torch.stack(list(errors.values())).mean().item()

    def distil(self, batch: Batch, groups: list[dict[str, list[Tensor]]]) -> float:
        """One step of the second."""
        error = self.distance(batch)
        torch.autograd.backward(error)
        nn.utils.clip_grad_norm_([p for group in groups for p in group["params"]], 1.0)
        return error.item()

    def distance(self, batch: Batch) -> Tensor:
        more = {**without_cache(self.student), "output_hidden_states": self.loss is not losses.logits}
        with torch.no_grad():
            theirs = self.teacher(**batch, **more)
        return self.loss(self.student(**batch, **more), theirs, batch)

    @torch.no_grad()
    def held_out_errors(self) -> dict[str, float]:
        found = [layers.layer_errors(self.student, self.layers, batch, learn=False) for batch in self.held]
        return {pair.name: sum(errors[pair.name].item() for errors in found) / len(found) for pair in self.layers}

    @torch.no_grad()
    def held_out_loss(self) -> float:
        return sum(self.distance(batch).item() for batch in self.held) / len(self.held)

    def save(self, optimizer: torch.optim.Optimizer | None) -> None:
        if self.path is not None:
            checkpoint.save(self.path, self.recipe, self.position, self.student, sorted(self.changed), optimizer)


def _add(totals: dict[str, float] | dict[str, int], name: str, amount: float) -> None:
    totals[name] = totals.get(name, 0) + amount  # type: ignore[assignment]
