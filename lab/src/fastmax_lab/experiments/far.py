"""Recall from afar: pairs of a key and a value among noise in the first quarter of a text, and questions everywhere after it.

A question is a key again; the model has to name its value, which stands up to the whole length before. Training begins with
short texts and doubles their length whenever the answers are right, until the length of the run.
"""

import io
from collections.abc import Callable
from dataclasses import dataclass, field
from math import isfinite, log2
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fastmax._atomic_file import write_whole
from fastmax.models import FastmaxLM, LMConfig
from fastmax_lab.experiments import recipes
from fastmax_lab.experiments.training import reaches
from fastmax_lab.lra.metrics import DivergedError

SOLVED = 0.995
"""Accuracy on new texts of the whole length at which training ends."""
LEARNED = 0.98
"""Smoothed accuracy in training at which texts become longer."""
SMOOTHED = 0.9
QUESTIONS = 16
"""Tokens per question."""
TESTED = 32_768
"""Tokens of new texts of each length, at least four texts."""
SAVED_EVERY = 60.0
"""Seconds between checkpoints."""
WARMUP = 100
COOLED = 0.75
"""Share of the steps after which the rate falls."""


@dataclass(frozen=True)
class FarRun:
    """A run of `pairs` that are asked for, and `distractors`, which are not, in texts of at most `length` tokens."""

    recipe: str
    pairs: int = 16
    distractors: int = 0
    length: int = 4096
    lr: float = 3e-3
    seed: int = 0
    steps: int = 4000
    tokens: int = 4096  # of a step: as many texts as fit, one at least
    names: int = 64
    noise: int = 64
    width: int = 64
    heads: int = 2
    layers: int = 2

    @property
    def shortest(self) -> int:
        """Return the length at which the first quarter has no room for noise, rounded up to a power of two."""
        return 1 << (8 * (self.pairs + self.distractors) - 1).bit_length()

    @property
    def config(self) -> LMConfig:
        words = 2 * self.names + self.noise
        return LMConfig(words, layers=self.layers, width=self.width, heads=self.heads, mlp_ratio=2)


def texts(run: FarRun, length: int, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Return tokens (count, length); at questions the right answers, -100 elsewhere; and how far back these stand.

    Keys are the numbers from 0, values those from `names`, noise those from 2 * `names`. The last token is a question.
    """

    def drawn(choices: int, size: int) -> Tensor:
        """Draw different numbers, (count, size)."""
        return torch.rand(count, choices, generator=generator).argsort(1)[:, :size]

    every = run.pairs + run.distractors
    keys = drawn(run.names, every)
    values = torch.randint(run.names, (count, every), generator=generator) + run.names
    tokens = torch.randint(run.noise, (count, length), generator=generator) + 2 * run.names
    places = 2 * drawn(length // 8, every)
    tokens.scatter_(1, places, keys).scatter_(1, places + 1, values)
    asked = drawn(length - length // 4 - 1, length // QUESTIONS - 1) + length // 4
    asked = torch.cat((asked, torch.full((count, 1), length - 1)), 1)
    chosen = torch.randint(run.pairs, asked.shape, generator=generator)
    tokens.scatter_(1, asked, keys.gather(1, chosen))
    answers = torch.full_like(tokens, -100).scatter_(1, asked, values.gather(1, chosen))
    distances = torch.zeros_like(tokens).scatter_(1, asked, asked - places.gather(1, chosen) - 1)
    return tokens, answers, distances


@dataclass
class FarProgress:
    """The place in a training: with the weights, all that it needs to go on."""

    length: int
    step: int = 0
    accuracy: float = 0.0  # smoothed, in training, at this length
    loss: float = 0.0
    solved: bool = False
    seconds: float = 0.0
    curve: list[tuple[int, int, float]] = field(default_factory=list)  # step, length, accuracy
    reached: dict[str, int] = field(default_factory=dict)  # by length, the step at which it began


class FarTraining:
    """A training that can be interrupted, in a folder."""

    def __init__(self, run: FarRun, folder: Path) -> None:
        self.run, self.path = run, folder / "training.pt"
        self.model = recipes.make(run.recipe, run.seed, run.config)
        groups: list[dict[str, Any]] = self.model.parameter_groups(0.1)
        self.optimizer = torch.optim.AdamW(groups, run.lr, betas=(0.9, 0.95))
        self.generator = torch.Generator().manual_seed(run.seed)
        self.now = FarProgress(min(run.shortest, run.length))
        self.now.reached[str(self.now.length)] = 0
        if self.path.exists():
            kept = torch.load(self.path, weights_only=True)
            self.model.load_state_dict(kept["model"])
            self.optimizer.load_state_dict(kept["optimizer"])
            self.generator.set_state(kept["generator"])
            self.now = FarProgress(**kept["now"])

    def save(self) -> None:
        kept: dict[str, Any] = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        kept |= {"generator": self.generator.get_state(), "now": vars(self.now)}
        written = io.BytesIO()
        torch.save(kept, written)
        write_whole(self.path, written.getvalue())

    def train(self, watch: Callable[[int, float], object]) -> None:
        """Train until the whole length is solved, or to the last step."""
        run, now = self.run, self.now
        clock = saved = perf_counter()
        self.model.train()
        while now.step < run.steps and not now.solved:
            tokens, answers, _ = texts(run, now.length, max(1, run.tokens // now.length), self.generator)
            self._step(tokens, answers)
            if now.accuracy >= LEARNED:
                self._lengthen()
            if now.step % max(1, run.steps // 100) == 0:
                now.curve.append((now.step, now.length, round(now.accuracy, 4)))
            now.seconds += -clock + (clock := perf_counter())
            if clock - saved > SAVED_EVERY:
                self.save()
                saved = clock
            watch(now.step, now.loss)

    def _step(self, tokens: Tensor, answers: Tensor) -> None:
        run, now = self.run, self.now
        done = now.step / run.steps
        cooling = 1.0 if done < COOLED else 0.05 + 0.95 * (1 - done) / (1 - COOLED)
        for group in self.optimizer.param_groups:
            group["lr"] = run.lr * min(1.0, (now.step + 1) / WARMUP) * cooling
        asked = answers != -100
        logits = self.model(tokens)[asked]
        loss = cross_entropy(logits, answers[asked])
        self.optimizer.zero_grad()
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        now.step += 1
        now.loss = loss.item()
        if not isfinite(now.loss):
            raise DivergedError(f"the loss is {now.loss} at step {now.step}")
        right = (logits.argmax(-1) == answers[asked]).float().mean().item()
        now.accuracy = SMOOTHED * now.accuracy + (1 - SMOOTHED) * right

    def _lengthen(self) -> None:
        now = self.now
        if now.length < self.run.length:
            now.length, now.accuracy = min(2 * now.length, self.run.length), 0.0
            now.reached[str(now.length)] = now.step
        elif measured(self.model, self.run, now.length)[0] >= SOLVED:
            now.solved = True
        else:
            now.accuracy = 0.0  # to measure again only after some steps


@torch.no_grad()
def measured(model: FastmaxLM, run: FarRun, length: int) -> tuple[float, dict[str, list[float]]]:
    """Return the accuracy on new texts of a length, and by the distance's power of two, with the number of questions."""
    training = model.training
    model.eval()
    chance = torch.Generator().manual_seed(12345)
    right: list[Tensor] = []
    octaves: list[Tensor] = []
    count, batch = max(4, TESTED // length), max(1, run.tokens // length)
    for begin in range(0, count, batch):
        tokens, answers, distances = texts(run, length, min(batch, count - begin), chance)
        asked = answers != -100
        right.append((model(tokens)[asked].argmax(-1) == answers[asked]).float())
        octaves.append(distances[asked].float().log2().floor())
    model.train(training)
    hits, at = torch.cat(right), torch.cat(octaves)
    by_distance = {
        str(2 ** int(octave)): [hits[at == octave].mean().item(), int((at == octave).sum())]
        for octave in torch.unique(at)
    }
    return hits.mean().item(), by_distance


def far(run: FarRun, folder: Path, watch: Callable[[int, float], object] = lambda _step, _loss: None) -> dict[str, Any]:
    """Return the accuracy at the run's length, by distance there, and at all lengths up to twice as many tokens."""
    training = FarTraining(run, folder)
    training.train(watch)
    model, now = training.model, training.now
    accuracy, by_distance = measured(model, run, run.length)
    lengths = [2**power for power in range(int(log2(run.shortest)), int(log2(run.length)) + 2)]
    recipe = recipes.RECIPES[run.recipe]
    return {
        "accuracy": accuracy,
        "by_distance": by_distance,
        "by_length": {str(length): measured(model, run, length)[0] for length in lengths},
        "solved": now.solved,
        "steps_done": now.step,
        "length_reached": now.length,
        "reached": now.reached,
        "curve": now.curve,
        "seconds": round(now.seconds, 1),
        "parameters": sum(p.numel() for p in model.parameters()),
        "state": recipe.state(model.config, run.length),
        "reach": reaches(model, texts(run, run.shortest, 4, torch.Generator().manual_seed(1))[0]),
    }
