"""The parameters of the student that learn in a stage, and their rates."""

from typing import Any

from torch import nn
from transformers import PreTrainedModel

from fastmax.integrations.transformers import attention_modules
from fastmax.integrations.transformers.options import CHILD
from fastmax_lab.conversion.recipe import Stage

VALUES_AND_OUTPUTS = {
    "v", "v_proj", "v_lin", "value", "value_proj", "v_norm",
    "o", "o_proj", "out", "out_proj", "out_lin", "c_proj", "dense", "proj", "projection", "Wo", "wo",
}  # fmt: skip
"""Names of the projections of values and of outputs. A weight that makes queries, keys and values at once learns."""

Group = dict[str, Any]


def learning(student: PreTrainedModel, stage: Stage) -> tuple[list[str], list[Group]]:
    """Return the names of the parameters that learn, and the optimizer's groups with their "top" rate. Freeze the rest."""
    own, scales, gates = f".{CHILD}.", "head_scale", "gate"
    wanted = _wanted(student, stage.train)
    groups: dict[str, Group] = {
        kind: {"params": [], "lr": rate, "top": rate}
        for kind, rate in (("weights", stage.lr), (scales, stage.scale_lr), (gates, stage.gate_lr))
    }
    names = []
    for name, parameter in student.named_parameters():
        added = name.partition(own)[2]
        kind = next((kind for kind in (scales, gates) if added.startswith(kind)), "weights")
        parameter.requires_grad_(bool(added) or name in wanted)
        if parameter.requires_grad:
            groups[kind]["params"].append(parameter)
            names.append(name)
    return names, [group for group in groups.values() if group["params"]]


def _wanted(student: nn.Module, train: str) -> set[str]:
    if train == "all":
        return {name for name, _ in student.named_parameters()}
    found = set()
    for prefix, module in attention_modules(student):
        for name, _ in module.named_parameters():
            if train == "attention" or not VALUES_AND_OUTPUTS & set(name.split(".")):
                found.add(f"{prefix}.{name}")
    return found
