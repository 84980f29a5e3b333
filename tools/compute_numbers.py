"""Numbers in the docs that the code computes: from formulas, from counted launches, and from several records at once.

python -m tools.compute_numbers
"""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from math import hypot
from pathlib import Path
from statistics import mean

import torch
from tests.test_costs import MODELS
from tools import gpu_roofline

from fastmax import core, cost
from fastmax.backends.triton.cut import BUDGET
from fastmax.features import feature_count
from fastmax.plan import BF16_SPEED, cheaper_form
from fastmax_lab import _roofline
from fastmax_lab._cells import Cell
from fastmax_lab.bench.gpu_estimate import values_of
from fastmax_lab.bench.launches import count
from fastmax_lab.bench.ring import MACHINES
from fastmax_lab.data.archives import MAX_BYTES
from fastmax_lab.measurements import read
from fastmax_lab.report.page.sections import lra_runs

RESULTS = Path(__file__).parent.parent / "lab" / "results"
JUMPED = 2.05
"""Training loss on ListOps. A model that predicts the most frequent class has 2.26."""


def features_by_order() -> Iterator[str]:
    for order in (1, 2, 3, 4):
        yield f"| {order} | {feature_count(32, order)} / {feature_count(64, order)} |"


def longest_dense() -> Iterator[str]:
    """Yield the longest sequences that the rule gives to the dense form: unmasked, causal, causal with pairs of bf16."""
    for head_dim, order in ((16, 2), (32, 1), (32, 2), (64, 1), (64, 2), (64, 3), (128, 2)):
        longest = [
            next(
                n
                for n in range(1, 1 << 20)
                if cheaper_form(n + 1, n + 1, head_dim, head_dim, order, is_causal, speed) == "factorized"
            )
            for is_causal, speed in ((False, 1.0), (True, 1.0), (True, BF16_SPEED))
        ]
        yield f"| {head_dim} | {feature_count(head_dim, order)} | {longest[0]} | {longest[1]} | {longest[2]} |"


def errata() -> Iterator[str]:
    s = torch.linspace(-4, 4, 80_001, dtype=torch.float64)
    least = core.similarity(s, 4).min(0)
    yield f"the least weight of order 4: {least.values:.4f} at {s[least.indices]:.3f}"
    torch.manual_seed(0)
    q, k = torch.randn(2, 2048, 64, 64)
    for name, is_causal in (("unmasked", False), ("causal", True)):
        moments = core.moments(core.standardize(k), torch.ones(2048, 64, 1), 1, is_causal)
        _, g = core.readout(core.standardize(q), moments, 1, is_causal)
        t = torch.linspace(0, 1, 10_001, dtype=torch.float64) if is_causal else torch.ones(1)
        expected = torch.special.ndtr(-t.sqrt()).mean()
        yield f"| {name} | {expected:.1%} | {(g <= 0).double().mean():.1%} |"


def gpu_estimates() -> Iterator[str]:
    """Yield milliseconds on an A100 of `batched`, in FlexAttention and without it, and of FlashAttention-2."""
    for tokens, with_flex, backward in product((4096, 16384, 65536), (True, False), (False, True)):
        cell = Cell(tokens, 64, 2, is_causal=True, backward=backward, dtype="bfloat16", heads=16)
        found = count(tokens, backward=backward, with_flex=with_flex)
        if with_flex and not found.flex:
            continue
        own, flash = (
            _roofline.estimate(values_of(found), cell, "A100") or 0.0,
            _roofline.flash_seconds(cell, "A100") or 0.0,
        )
        yield f"| {tokens:,} | {found.total} | {1000 * own:.3g} ms | {1000 * flash:.3g} ms |"
    shares = f"{_roofline.MEMORY_SHARE:.0%} of bandwidth, {_roofline.PEAK_SHARE:.0%} of the peak"
    yield f"assumed: {_roofline.LAUNCH * 1e6:g} us a launch, {shares}"


def gpu_kernels() -> Iterator[str]:
    """Yield bytes spilled, shared memory, and instructions and barriers per product, of the kernels with products."""
    spilled: dict[str, list[str]] = {}
    for run in read(RESULTS / "gpu-kernels.jsonl"):
        if "kernels" not in run.values:
            host = " and ".join(f"{1000 * run.values[name]['host']:.2f} ms" for name in ("forward", "backward"))
            yield f"{run.name}: {host} of the host"
            continue
        target, kernels = run.settings["target"], [one for one in run.values["kernels"] if one["loops"]]
        spilled.setdefault(target, []).append(f"{max(one['spills'] for one in kernels)} B")
        if run.settings["case"] == "plain":
            loops = [loop for one in kernels for loop in one["loops"]]
            ratios = " | ".join(f"{a / n:.2g} | {b / n:.1g} | {b / n:.2f}" for a, n, b in loops)
            yield f"| {target}, D = {run.settings['head_dim']} | {ratios} |"
            shared = f"{max(one['shared'] for one in kernels) / 1024:.0f} KB"
        else:
            spilled[target].append(shared)
    for target, cells in spilled.items():
        yield f"| {target} | {' | '.join(cells)} |"


KEYS = {
    "independent": "independent", "cluster": "one cluster, spread 0.05", "identical": "all the same",
    "two clusters": "two clusters, spread 0.1", "few": "three, independent",
}  # fmt: skip


def bf16_errors(backend: str) -> Iterator[str]:
    """Yield the larger error of causal and unmasked calls at scale 1, factorized / dense, and the largest ratios."""
    runs = [run for run in read(RESULTS / "bf16-errors.jsonl") if run.settings.get("backend") == backend]
    ratios: dict[tuple[bool, bool], list[float]] = {}
    for kind, label in KEYS.items():
        of = [run for run in runs if run.settings["keys"] == kind]
        at_one = [run.values for run in of if run.settings["scale"] == 1.0]
        names = at_one[0]["dense"]
        cells = [
            " / ".join(f"{max(v[form][x] for v in at_one):.1e}" for form in ("factorized", "dense")) for x in names
        ]
        yield f"| {label} | {' | '.join(cells)} |"
        for run in of:
            found = [run.values["factorized"][x] / run.values["dense"][x] for x in names]
            ratios.setdefault((kind == "few", run.settings["scale"] == 1.0), []).extend(found)
    for (is_few, is_one), found in ratios.items():
        of_keys = "three keys" if is_few else "many keys"
        yield f"{of_keys} at scale {'1' if is_one else '1/sqrt(D)'}: at most {max(found):.1f} times the dense form"


def bf16_emulated() -> Iterator[str]:
    for run in read(RESULTS / "bf16-errors.jsonl"):
        if "backend" not in run.settings:
            yield f"| {KEYS[run.settings['keys']]} | {' | '.join(f'{error:.1e}' for error in run.values.values())} |"


def costs() -> Iterator[str]:
    """Yield the costs of models and the sizes of states."""
    for name, shape in MODELS.items():
        for channels in (shape["head_dim"], 32):
            found = cost(**shape, seq_len=16384, qk_head_dim=channels, dtype=torch.bfloat16)
            sizes = f"{found.state_bytes / 1e6:.0f} MB | {found.cache_bytes / 1e6:.0f} MB"
            lengths = f"{found.memory_break_even} | {found.break_even}"
            yield f"| {name}, {channels} | {sizes} | {lengths} | {found.speedup:.2g} |"
            yield f"{name}, {channels}: {found.features} features, {found.head_state_bytes / 1e6:.2g} MB a head"
    yield f"Llama-3-8B: {cost(**MODELS['Llama-3-8B'], seq_len=1, dtype=torch.float32).state_bytes / 1e9:.1f} GB"
    largest = cost(**MODELS["SmolLM2-135M"], seq_len=1, order=4, dtype=torch.float32)
    yield f"SmolLM2 at order 4: {largest.state_bytes / 1e9:.0f} GB"
    yield f"the sums of eight heads of 64: {4 * 8 * feature_count(64, 2) * 65 / 1e6:.2f} MB"
    yield f"q, k, v, o and their gradients, 65,536 tokens, 128 heads of 128, bf16: {2 * 8 * 65536 * 128 * 128 / 1e9:.0f} GB"


def limits() -> Iterator[str]:
    yield f"the states of all chunks: {BUDGET / 2**20:.0f} MB"
    yield f"an archive may unpack to {MAX_BYTES / 1e9:g} GB"
    for machine in MACHINES:
        yield f"a message takes {1e6 * machine.latency:g} us: {machine.name}"


def audio() -> Iterator[str]:
    """Yield the accuracy of each run on spoken digits, the median seconds of a step, and the minutes of all steps by it."""
    for run in read(RESULTS / "audio.jsonl"):
        step, share = run.values["seconds_of_a_step"], run.values["accuracy"]
        minutes, error = run.settings["steps"] * step / 60, (share * (1 - share) / run.values["tested"]) ** 0.5
        name = {"gated": "fastmax2, gated", "softmax": "softmax, PyTorch's kernel"}
        label = name.get(run.settings["attention"], run.settings["attention"])
        yield f"| {label} | {run.settings['rate']} | {100 * share} % | {step} | {minutes} | ± {100 * error} points"


def jumps() -> Iterator[str]:
    """Yield the steps of runs on ListOps before the first hundred with a mean training loss below JUMPED."""
    yield f"below {JUMPED}, from 2.26"
    for run in read(RESULTS / "lra.jsonl"):
        if run.settings["task"] == "listops":
            losses = [loss for _, loss, _ in run.values["curves"]["train"]]
            means = [mean(losses[i : i + 10]) for i in range(0, len(losses), 10)]
            jumped = [100 * i for i, loss in enumerate(means) if loss < JUMPED]
            if jumped:
                yield f"| {run.settings['attention']} | {jumped[0]} steps |"
    for run in read(RESULTS / "lra-tries.jsonl"):
        losses = run.values.get("mean_training_loss", [])
        found = [100 * i for i, loss in enumerate(losses) if loss < JUMPED and run.settings["task"] == "listops"]
        if found:
            of = f"{run.settings['length']}, {run.settings['batch']}"
            yield f"| {of} | {found[0]} to {found[0] + 100} steps, of {run.settings['steps']} |"


def paces() -> Iterator[str]:
    """Yield a step's time over softmax's in the trainings, and its speed over softmax's at full length, by medians."""
    for name, is_time in (("lra-pace", True), ("lra-speed", False)):
        for run in read(RESULTS / f"{name}.jsonl"):
            took = {attention: t["median"] for attention, t in run.values["seconds"].items()}
            for attention in ("fastmax1", "fastmax2"):
                share = took[attention] / took["softmax"]
                yield f"{name} {run.name}, {attention}: {share if is_time else 1 / share} times"


def leads() -> Iterator[str]:
    """Yield the points of test accuracy by which Fastmax1 leads softmax in equal time, with their standard error."""
    runs = {run.name: run for run in read(RESULTS / "lra.jsonl")}
    for task in ("image",):
        fastmax, softmax = [runs[f"{task}-fastmax1-longer-seed0"]], [runs[f"{task}-softmax-seed0"]]
        yield (
            f"{task}: {lra_runs.accuracy(fastmax) - lra_runs.accuracy(softmax):.1f} ± "
            f"{hypot(lra_runs.error(fastmax), lra_runs.error(softmax)):.1f} points"
        )


def tables() -> dict[str, str]:
    """Return by name what is computed."""
    found: tuple[tuple[str, Callable[[], Iterator[str]]], ...] = (
        ("features by order", features_by_order),
        ("longest dense", longest_dense),
        ("errata", errata),
        ("gpu roofline", gpu_roofline.lines),
        ("gpu estimates", gpu_estimates),
        ("gpu kernels", gpu_kernels),
        ("gpu errors, triton", partial(bf16_errors, "triton")),
        ("gpu errors, batched", partial(bf16_errors, "batched")),
        ("bf16 emulated", bf16_emulated),
        ("costs", costs),
        ("limits", limits),
        ("audio", audio),
        ("lra jumps", jumps),
        ("lra leads", leads),
        ("lra paces", paces),
    )
    return {name: "\n".join(lines()) for name, lines in found}


if __name__ == "__main__":
    for name, text in tables().items():
        print(f"## {name}\n\n{text}\n")
