"""Long Range Arena accuracy (Table 1, Figure 6): every attention trained on every task, equal steps, one preset."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from fastmax_lab.experiments.items import Item, Workspace
from fastmax_lab.lra.config import Intervals
from fastmax_lab.lra.metrics import read
from fastmax_lab.lra.run import RunConfig, configure
from fastmax_lab.measurements import Measurement, slug

NAME = "lra"
MAIN: tuple[tuple[str, dict[str, Any]], ...] = (
    ("fastmax2", {}),
    ("softmax", {}),
    ("fastmax1", {}),
    ("fastmax2, gated", {"attention": "fastmax2", "decay": "gated"}),
    ("fastmax2, paper's scale", {"attention": "fastmax2", "scale": "paper"}),
)
"""The attentions that matter most, and what they set; the first two of a task are the pair to compare."""
OTHERS = ("linear", "performer", "reformer", "informer")


@dataclass(frozen=True)
class TaskBudget:
    """The settings that replace those of the preset; None keeps the preset's."""

    batch: int | None = None
    steps: int | None = None
    lr: float | None = None
    length: int | None = None
    dropout: float | None = 0.0
    evaluated: int | None = 2000
    """Examples of dev and of test."""
    looks: int = 6
    """The number of evaluations on the dev set. On few steps one costs as much as the training before it."""
    examples: int | None = None
    """Training examples."""
    group_lengths: bool = False
    others: bool = True
    """False where the attentions of `OTHERS` are too slow for steps enough to leave chance level."""
    longer: tuple[tuple[str, int], ...] = ()
    """Attentions that are also trained in the time that softmax takes for `steps`, and in how many steps: never more than
    `lra-pace` allows, so that their last look at the dev set is not after softmax's; on Text it allows 1.6 times as many."""
    main: int = len(MAIN)
    """The number of attentions of `MAIN`."""
    cost: float = 1.0
    """Seconds a step, of fastmax2 on one thread."""


QUICK = {"listops": TaskBudget(batch=16, steps=60, lr=1e-3, length=96, evaluated=400, examples=960, cost=0.03)}
CPU = {
    "text": TaskBudget(
        batch=16,
        steps=1500,
        lr=5e-4,
        group_lengths=True,
        longer=(("fastmax1", 6000), ("fastmax2", 3000)),
        cost=0.35,
    ),
    "image": TaskBudget(
        batch=16,
        steps=1500,
        lr=2e-3,
        others=False,
        longer=(("fastmax1", 5500), ("fastmax2", 2850)),
        cost=0.35,
    ),
    "listops": TaskBudget(
        batch=32,
        steps=2500,
        lr=1e-3,
        group_lengths=True,
        others=False,
        longer=(("fastmax1", 8600), ("fastmax2", 4650)),
        cost=0.6,
    ),
    "retrieval": TaskBudget(
        batch=4,
        steps=1000,
        lr=2e-4,
        evaluated=1000,
        looks=2,
        others=False,
        longer=(("fastmax1", 9500),),
        cost=0.65,
    ),
    "pathfinder": TaskBudget(batch=16, steps=1000, lr=1e-3, others=False, main=2, cost=0.35),
}
"""Without dropout: these trainings end before there is anything to overfit.

ListOps and Retrieval show nothing for a while: order 2 at scale 1 leaves ListOps' most frequent class after 1,100 steps of 32
examples, order 1 chance on Retrieval after some 20,000 pairs."""
FULL = {
    name: TaskBudget(dropout=None, evaluated=None) for name in ("listops", "text", "retrieval", "image", "pathfinder")
}
"""The preset as it is: 50,000 steps."""
TASKS = {"quick": QUICK, "cpu": CPU, "full": FULL}
INTERVALS = Intervals(log_every=10, checkpoint_every=50)
_PACES = {"softmax": 3.0, "fastmax1": 0.5, "fastmax2, gated": 2.0, "linear": 0.5, "reformer": 3.0, "informer": 3.0}


def items(budget: str, found: Sequence[Measurement]) -> list[Item]:  # noqa: ARG001  (one signature for all experiments)
    tasks = TASKS[budget]
    seeds = (0, 1, 2) if budget == "full" else (0,)
    result = [
        item(task, name, changes, seed, of)
        for seed in seeds
        for task, of in tasks.items()
        for name, changes in MAIN[: of.main]
    ]
    result += [
        item(task, name, {}, 0, replace(of, steps=steps), "longer")
        for task, of in tasks.items()
        for name, steps in of.longer
    ]
    return result + [item(task, name, {}, 0, of) for task, of in tasks.items() if of.others for name in OTHERS]


def item(task: str, label: str, changes: dict[str, Any], seed: int, budget: TaskBudget, kind: str = "") -> Item:
    config = make_config(task, changes.get("attention", label), changes, seed, budget)
    settings = {"task": task, "attention": label, "seed": seed, **_differing(config, changes)}
    cost = budget.cost * config.train.steps * _PACES.get(label, 1.0)
    return Item(
        NAME,
        slug(task, label, kind, f"seed{seed}").replace("'s", ""),
        settings,
        lambda workspace: train(config, workspace),
        cost,
        1,
    )


def make_config(task: str, attention: str, changes: dict[str, Any], seed: int, budget: TaskBudget) -> RunConfig:
    given = {"batch": budget.batch, "steps": budget.steps, "lr": budget.lr, "length": budget.length}
    given |= {"dropout": budget.dropout, "attention_dropout": budget.dropout, "eval_examples": budget.evaluated}
    given |= {"train_examples": budget.examples, "group_lengths": budget.group_lengths}
    given |= {name: value for name, value in changes.items() if name != "attention"}
    steps = budget.steps
    if steps is not None:
        given |= {"eval_every": -(-steps // budget.looks), "warmup": max(1, steps // 10)}
    return configure(task, attention, seed=seed, **{name: value for name, value in given.items() if value is not None})


def _differing(config: RunConfig, changes: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that differ from the preset. The whole configuration is in the result."""
    t, m = config.train, config.model
    values = {"preset": config.preset, "steps": t.steps, "batch": t.batch, "lr": t.lr, "warmup": t.warmup}
    values |= {"length": config.task_shape().length, "dropout": m.dropout, "attention_dropout": m.attention_dropout}
    values |= {"scale": config.scale, "decay": config.decay, "eval_examples": config.eval_examples}
    values |= {"train_examples": config.train_examples, "group_lengths": config.group_lengths}
    return values | {name: value for name, value in changes.items() if name != "attention"}


def train(config: RunConfig, workspace: Workspace) -> dict[str, Any]:
    """Return the result of the run, and its curves: [step, loss, accuracy], of single batches in training."""
    from fastmax_lab.lra import train as lra_train

    folder, share = workspace.folder / "run", 0.0

    def watch(step: int, line: str) -> None:
        nonlocal share
        share = step / config.train.steps
        workspace.show(share, line)

    def say(line: str) -> None:
        workspace.show(share, line)

    result = lra_train.train(
        config, data=workspace.data, out=folder, resume=True, intervals=INTERVALS, say=say, watch=watch
    )
    curves = {
        kind: [[line["step"], line["loss"], line["accuracy"]] for line in read(folder, kind)]
        for kind in ("train", "dev")
    }
    curves["gradient"] = [[line["step"], line["gradient_norm"]] for line in read(folder, "train")]
    return result | {"curves": curves}
