"""Train a small character model with Fastmax attention on a text, and let it write.

python examples/char_lm.py                        # on a text that it makes up itself, in about a minute
python examples/char_lm.py --compare              # the same with softmax, from the same seed and batches
python examples/char_lm.py --text my.txt --steps 2000 --layers 4 --width 256 --length 256
"""

import argparse
import random
from collections.abc import Iterator
from importlib.util import find_spec
from math import cos, pi
from pathlib import Path
from time import perf_counter

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fastmax.baselines.softmax_layer import SoftmaxAttention
from fastmax.models import FastmaxLM, LMConfig

GRAMMAR = {
    "text": ["{scene} {scene}\n"],
    "scene": [
        "{who} {did} the {thing}.",
        "{who} {did} the {thing}, and {who} {did} it too.",
        "Why did {who} {verb} it?",
    ],
    "who": ["the {kind} {animal}", "a {animal}", "{name}", "{name}, who {did} the {thing},"],
    "kind": ["old", "quiet", "hungry", "clever", "green"],
    "animal": ["fox", "heron", "badger", "owl", "beetle"],
    "name": ["Anna", "Bertram", "Clara", "Dorian"],
    "did": ["saw", "found", "carried", "painted", "forgot"],
    "verb": ["see", "find", "carry", "paint", "forget"],
    "thing": ["lantern", "river", "{kind} stone", "letter", "bridge"],
}


def made_up_text(characters: int, seed: int = 0) -> str:
    """Sentences of a tiny grammar, so that the example runs without a file."""
    chance = random.Random(seed)

    def say(rule: str) -> str:
        text = chance.choice(GRAMMAR[rule])
        while "{" in text:
            before, _, rest = text.partition("{")
            inner, _, after = rest.partition("}")
            text = f"{before}{say(inner)}{after}"
        return text

    parts, size = [], 0
    while size < characters:
        parts.append(say("text"))
        size += len(parts[-1])
    return "".join(parts)[:characters]


def progress(steps: int, title: str) -> Iterator[int]:
    """The numbers of the steps, with a bar if rich is installed."""
    if find_spec("rich") is not None:
        from rich.progress import track

        yield from track(range(steps), description=title)
        return
    for step in range(steps):
        if step % max(1, steps // 10) == 0:
            print(f"{title}: step {step:,} of {steps:,}", flush=True)
        yield step


def batch_of(text: Tensor, size: int, length: int, chance: torch.Generator) -> Tensor:
    """(size, length + 1): pieces of the text from random places."""
    starts = torch.randint(len(text) - length, (size,), generator=chance)
    return torch.stack([text[start : start + length + 1] for start in starts.tolist()])


def loss_of(model: FastmaxLM, tokens: Tensor) -> Tensor:
    """Of the next character at every place, in nats."""
    return cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


@torch.no_grad()
def validation_loss(model: FastmaxLM, text: Tensor, args: argparse.Namespace) -> float:
    chance = torch.Generator().manual_seed(0)  # the same places every time
    losses = [loss_of(model.eval(), batch_of(text, args.batch, args.length, chance)) for _ in range(8)]
    return torch.stack(losses).mean().item()


def train(attention: str, text: Tensor, vocabulary: int, args: argparse.Namespace) -> FastmaxLM:
    """AdamW, warmup and cosine. The seed decides the first weights and all batches, whatever the attention."""
    torch.manual_seed(args.seed)
    softmax = attention == "softmax"
    config = LMConfig(
        vocabulary,
        args.layers,
        args.width,
        args.heads,
        normalize=not softmax,
        decay=None if softmax else "gated",
        memory=(2.0, 7.0),
    )
    model = FastmaxLM(config, SoftmaxAttention) if softmax else FastmaxLM(config)
    optimizer = torch.optim.AdamW(model.parameter_groups(0.1), args.lr, betas=(0.9, 0.95))
    chance = torch.Generator().manual_seed(args.seed)
    warmup, start = max(1, args.steps // 20), perf_counter()
    model.train()
    for step in progress(args.steps, attention):
        for group in optimizer.param_groups:
            group["lr"] = args.lr * min(1.0, (step + 1) / warmup) * (0.55 + 0.45 * cos(pi * step / args.steps))
        loss = loss_of(model, batch_of(text, args.batch, args.length, chance))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    print(f"{attention}: training loss {loss.item():.3f} after {args.steps:,} steps, {perf_counter() - start:.0f} s")
    return model


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="A character model with Fastmax attention.")
    parser.add_argument("--text", type=Path, help="a UTF-8 file; by default a text is made up")
    parser.add_argument("--compare", action="store_true", help="train softmax too, from the same seed")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--length", type=int, default=128, help="characters per training piece")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--width", type=int, default=96)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sample", type=int, default=300, help="characters to write")
    parser.add_argument("--temperature", type=float, default=0.8)
    return parser.parse_args()


def main() -> None:
    args = arguments()
    text = made_up_text(100_000) if args.text is None else args.text.read_text(encoding="utf-8")
    letters = sorted(set(text))
    number = {letter: i for i, letter in enumerate(letters)}
    tokens = torch.tensor([number[letter] for letter in text])
    cut = len(tokens) * 9 // 10
    if len(tokens) - cut <= args.length:
        raise SystemExit(f"the text must have more than {10 * args.length:,} characters, it has {len(tokens):,}")
    print(f"{len(text):,} characters, {len(letters)} of them different")
    names = ("fastmax", "softmax") if args.compare else ("fastmax",)
    models = {name: train(name, tokens[:cut], len(letters), args) for name in names}
    for name, model in models.items():
        print(f"{name}: validation loss {validation_loss(model, tokens[cut:], args):.3f} nats per character")
    chance = torch.Generator().manual_seed(args.seed)
    written = models["fastmax"].generate(
        tokens[None, cut : cut + 1], args.sample, temperature=args.temperature, generator=chance
    )
    print("".join(letters[i] for i in written[0].tolist()))


if __name__ == "__main__":
    main()
