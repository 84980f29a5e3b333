"""The result of a conversion: the student, and its distance from the teacher."""

import json
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedModel

from fastmax_lab.conversion.checkpoint import ConversionProgress
from fastmax_lab.conversion.recipe import Recipe


@dataclass(frozen=True)
class LayerError:
    """Squared error of a layer's output on the teacher's inputs, over the variance of the teacher's output, held out."""

    name: str
    before: float
    after: float


@dataclass(frozen=True)
class Conversion:
    """The result of `convert`: the student, and its distance from the teacher.

        >>> conversion = convert(teacher, batches, transfer=Stage(0, lr=0), distill=Stage(0, lr=0), held_out=1)
        >>> conversion.model.config._attn_implementation
        'fastmax'

    Attributes:
        model: the student, in evaluation mode: save_pretrained keeps all of it.
        layers: the error of each attention before training and after the first stage; 0 is the teacher itself.
        losses: the distance of the whole model from the teacher on the batches held out, "before", after "transfer" and
            after "distill".
        curve: (stage, step, loss on the training batch: mean of the layers' errors in the first, distance in the second).
        kept: by stage, the step whose weights it ended with; 0 are the initial ones.
        tokens: by stage.
        seconds: by stage.
        cpu_seconds: by stage.
        recipe: the settings, in plain values.
    """

    model: PreTrainedModel
    layers: tuple[LayerError, ...]
    losses: dict[str, float]
    curve: tuple[tuple[str, int, float], ...]
    kept: dict[str, int]
    tokens: dict[str, int]
    seconds: dict[str, float]
    cpu_seconds: dict[str, float]
    recipe: dict[str, Any]

    @classmethod
    def of(cls, model: PreTrainedModel, recipe: Recipe, position: ConversionProgress) -> "Conversion":
        before, after = position.errors["before"], position.errors["transfer"]
        return cls(
            model,
            tuple(LayerError(name, before[name], after[name]) for name in before),
            position.losses,
            tuple((stage, step, loss) for stage, step, loss in position.curve),
            position.kept,
            position.tokens,
            position.seconds,
            position.cpu_seconds,
            json.loads(recipe.to_json()),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the model, for JSON."""
        return {
            "layers": [{"name": x.name, "before": x.before, "after": x.after} for x in self.layers],
            "losses": self.losses,
            "curve": [list(point) for point in self.curve],
            "kept": self.kept,
            "tokens": self.tokens,
            "seconds": self.seconds,
            "cpu_seconds": self.cpu_seconds,
            "recipe": self.recipe,
        }

    def __str__(self) -> str:
        width = max(len(x.name) for x in self.layers)
        lines = [f"{'attention, error on held-out batches':{width}}  before  after stage 1"]
        lines += [f"{x.name:{width}}  {x.before:6.3f}  {x.after:6.3f}" for x in self.layers]
        losses = ", ".join(f"{name} {value:.4f}" for name, value in self.losses.items())
        lines.append(f"distance of the whole from the teacher: {losses}")
        for stage, tokens in self.tokens.items():
            kept = f"the weights of step {self.kept[stage]} of {self.recipe[stage]['steps']}"
            lines.append(f"{stage}: {tokens:,} tokens, {self.cpu_seconds[stage]:.0f} s of processor time, {kept}")
        return "\n".join(lines)
