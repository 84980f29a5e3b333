"""The stages of a conversion in turn, resumed from a checkpoint if there is one."""

from collections.abc import Callable, Iterator
from itertools import islice
from math import isfinite
from pathlib import Path
from time import perf_counter, process_time

import torch
from torch import Tensor, nn
from tqdm.auto import tqdm
from transformers import PreTrainedModel

from fastmax_lab.conversion import checkpoint, layers, losses
from fastmax_lab.conversion.batches import Batch, on, tokens_of, without_cache
from fastmax_lab.conversion.parameters import learning
from fastmax_lab.conversion.recipe import Recipe, Stage

BETAS = (0.9, 0.98)
CHECKS = 4
"""Number of times per stage that the student is measured on the batches held out."""


class ConversionRun:
    """A running conversion; `position` holds its results so far."""

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
        self.position = checkpoint.ConversionProgress()
        self.optimizer_state: dict[str, Tensor] = {}
        self.best: dict[str, Tensor] = {}
        if path is not None and path.exists():
            self.position, self.optimizer_state, self.best = checkpoint.load(path, recipe, student)
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
        with tqdm(total=total, desc="converting", unit="step", disable=not progress) as bar:
            for name, stage in self.stages.items():

                def show(step: int, text: str, past: int = past) -> None:
                    bar.set_description(text, refresh=False)
                    bar.update(past + step - bar.n)

                if names.index(name) >= names.index(now.stage):
                    self.learn(name, stage, show)
                past += stage.steps

    def learn(self, name: str, stage: Stage, say: Callable[[int, str], None]) -> None:
        now = self.position
        if now.stage != name:
            now.stage, now.step = name, 0
        names, groups = learning(self.student, stage)
        optimizer = torch.optim.AdamW(groups, weight_decay=0.0, betas=BETAS)
        checkpoint.restore(optimizer, self.student, self.optimizer_state)
        self.optimizer_state = {}
        clock, cpu = perf_counter(), process_time()
        if name not in now.kept:
            self.keep(name, names, now.errors["before"], now.losses["before" if name == "transfer" else "transfer"])
        while now.step < stage.steps:
            batch = on(self.student.device, next(self.stream))
            for group in optimizer.param_groups:
                group["lr"] = group["top"] * stage.warmth(now.step)
            optimizer.zero_grad()
            error = self.imitate(batch) if name == "transfer" else self.distil(batch, groups)
            if not isfinite(error):
                raise ValueError(f"the error is {error} at step {now.step + 1} of {name}: take smaller learning rates")
            optimizer.step()
            now.step += 1
            last = now.step == stage.steps
            if last or (self.recipe.keep_best and now.step % max(1, stage.steps // CHECKS) == 0):
                self.check(name, names)
            if last:
                self.back_to_best()
            _add(now.tokens, name, tokens_of(batch))
            _add(now.seconds, name, -clock + (clock := perf_counter()))
            _add(now.cpu_seconds, name, -cpu + (cpu := process_time()))
            now.curve.append([name, now.step, error])
            say(now.step, f"{name}, error {error:.4f}")
            if now.step % self.save_every == 0 and not last:
                self.save(optimizer)
            if self.watch is not None:
                self.watch(name, now.step, self.student)
                clock, cpu = perf_counter(), process_time()
        if name not in now.losses:
            if name == "transfer":
                now.losses[name] = self.held_out_loss() if now.kept[name] else now.losses["before"]
            else:
                now.losses[name] = now.best
            self.save(None)

    def check(self, name: str, names: list[str]) -> None:
        """Measure on the batches held out; keep the weights if they do better than those kept so far."""
        if name == "transfer":
            errors = self.held_out_errors()
            error = _mean(errors)
        else:
            errors, error = {}, self.held_out_loss()
        if error < self.position.best or not self.recipe.keep_best:
            self.keep(name, names, errors, error)

    def keep(self, name: str, names: list[str], errors: dict[str, float], error: float) -> None:
        now = self.position
        now.kept[name] = now.step
        now.best = error
        if name == "transfer":
            now.errors[name], now.best = errors, _mean(errors)
        parameters = dict(self.student.named_parameters())
        self.best = {key: parameters[key].detach().clone() for key in names} if self.recipe.keep_best else {}

    @torch.no_grad()
    def back_to_best(self) -> None:
        parameters = dict(self.student.named_parameters())
        for name, x in self.best.items():
            parameters[name].copy_(x)
        self.best = {}

    def imitate(self, batch: Batch) -> float:
        """Take one step of the first stage and return the mean error of the layers."""
        errors = layers.layer_errors(self.student, self.layers, batch, learn=True)
        return torch.stack(list(errors.values())).mean().item()

    def distil(self, batch: Batch, groups: list[dict[str, list[Tensor]]]) -> float:
        """Take one step of the second stage."""
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
            names = sorted(self.changed)
            checkpoint.save(self.path, self.recipe, self.position, self.student, names, optimizer, self.best)


def _mean(errors: dict[str, float]) -> float:
    return sum(errors.values()) / len(errors)


def _add(totals: dict[str, float] | dict[str, int], name: str, amount: float) -> None:
    totals[name] = totals.get(name, 0) + amount  # type: ignore[assignment]
