"""convert: a pretrained softmax model becomes a Fastmax model, in two stages."""

from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from fastmax.integrations.transformers import configure
from fastmax_lab.conversion import layers, losses, narrowing
from fastmax_lab.conversion.batches import Batch, on, split
from fastmax_lab.conversion.recipe import Recipe, Stage
from fastmax_lab.conversion.report import Conversion
from fastmax_lab.conversion.run import ConversionRun

TRANSFER = Stage(steps=200, lr=1e-3)
DISTILL = Stage(steps=200, lr=1e-4, scale_lr=1e-2, gate_lr=1e-2, train="all")
MEMORY = (2.0, 7.0)


def convert(
    teacher: PreTrainedModel,
    batches: Iterable[Batch],
    *,
    order: int = 2,
    decay: str | None = None,
    memory: tuple[float, float] = MEMORY,
    normalize: bool | str | None = None,
    learn_scale: bool = True,
    qk_head_dim: int | None = None,
    windows: Mapping[str, int] | None = None,
    transfer: Stage = TRANSFER,
    distill: Stage = DISTILL,
    loss: str | losses.Loss = "auto",
    held_out: int = 2,
    keep_best: bool = True,
    checkpoint_path: Path | str | None = None,
    save_every: int = 100,
    watch: Callable[[str, int, PreTrainedModel], None] | None = None,
    progress: bool = True,
) -> Conversion:
    """Train a Fastmax model to imitate `teacher`, which is not changed.

        >>> result = convert(teacher, batches, decay="gated", transfer=Stage(1, lr=1e-3), distill=Stage(0, lr=0), held_out=1)
        >>> result.model.save_pretrained(folder / "student")

    First each attention layer learns the teacher's outputs on the teacher's inputs, layer by layer: its queries and keys, one
    scale per head, and its gate. Then the whole model learns the outputs of the teacher. Nothing is random: the same teacher
    and batches give the same student.

    Args:
        teacher: of any architecture that uses transformers' attention interface, encoder or decoder, in fp32, in evaluation
            mode and with attn_implementation="sdpa". Conversion holds it and the student in memory.
        batches: dictionaries of the model's input tensors: a list, a DataLoader, a generator that is long enough. They are
            repeated as often as the steps need. Tokens that `attention_mask` hides do not count.
        order: of the student, as in `configure`.
        decay: of the student, as in `configure`. For causal models take "gated". Cross attention does not decay.
        memory: of the student, as in `configure`.
        normalize: of the student, as in `configure`.
        learn_scale: learn one scale per head.
        qk_head_dim: as in `configure`. The projections start from the principal directions of the teacher's queries and keys
            on the first batch that is trained on, and learn in both stages.
        windows: as in `configure`: layers that keep softmax, with the number of the last tokens that they see.
        transfer: how long and how fast the first stage learns, and what.
        distill: the same for the second.
        loss: of the second stage: "logits" (divergence of the predictions), "hidden" (hidden states), "embeddings" (mean-
            pooled outputs and hidden states), or a function of the student's output, the teacher's output and the batch;
            "auto" is "logits" where the model has a head, else "hidden".
        held_out: the number of first batches that are not trained on. The reported errors are theirs, so let them contain
            every kind of text.
        keep_best: measure the student on them at the start of a stage and after each quarter of it, and end the stage with
            the weights that did best: the layers' errors in the first, the distance of the whole in the second. Neither
            stage then ends worse than it began. Without it a stage ends where its last step ends.
        checkpoint_path: a file from which a conversion with the same settings continues. Written every `save_every` steps
            and after each stage.
        save_every: steps between two writings of the checkpoint.
        watch: called with the stage, the number of steps done in it and the student, after each step, and at the start with
            "before" and 0: to measure the student on the way. After the last step of a stage it has the weights that are
            kept.
        progress: show a bar on standard error.
    """
    _check(teacher, transfer)
    if save_every < 1:
        raise ValueError(f"save_every must be at least 1, got {save_every}")
    aside, stream = split(batches, held_out)
    held = [on(teacher.device, batch) for batch in aside]
    output, crossing = layers.teacher_pass(teacher, held[0])
    loss_function = losses.chosen(loss, output)
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
        keep_best=keep_best,
        qk_head_dim=qk_head_dim,
    )
    student = deepcopy(teacher)
    shared: dict[str, Any] = {"normalize": normalize, "learn_scale": learn_scale, "qk_head_dim": qk_head_dim}
    chosen = configure(student, order, decay=decay, memory=memory, windows=windows, **shared)
    if decay is not None:  # keys of another sequence have no distance to fade with
        crossing = [name for name in crossing if name in chosen]
        configure(student, order, layers=crossing, **shared)
    if qk_head_dim is not None:
        first = next(stream)
        stream = chain((first,), stream)
        narrowing.start(student, teacher, on(teacher.device, first))
    run = ConversionRun(
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
        raise ValueError("the teacher is in training mode, where dropout changes its outputs: call teacher.eval()")
    if teacher.config._attn_implementation != "sdpa":
        raise ValueError(
            f'the teacher must use attn_implementation="sdpa", it has {teacher.config._attn_implementation!r}: '
            'call teacher.set_attn_implementation("sdpa")'
        )
    if teacher.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"weights are trained, so the teacher must be in float32, it is in {teacher.dtype}")
    if transfer.train == "all":
        raise ValueError('in the first stage only attention learns: transfer.train must not be "all"')
