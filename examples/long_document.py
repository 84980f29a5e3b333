"""Classify long documents by evidence that is spread over them, and see what reading only their beginning costs.

python examples/long_document.py                           # documents of up to 2,048 words, 15 processor seconds
python examples/long_document.py --length 8192 --compare   # and what a step takes with softmax

The documents are made up: filler words, and here and there a word that belongs to a topic, most often, but not always, to the
topic of the document. A model that reads only the first words meets too few of them.
"""

import argparse
from time import perf_counter

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fastmax import replace_attention

TOPICS = 8
WORDS = 10
"""Words that belong to each topic."""
FILLER = 200


def documents(count: int, length: int, chance: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Return words (count, length), which of them are padding, and topics. Documents have half to all of `length` words."""
    topic = torch.randint(TOPICS, (count,), generator=chance)
    words = TOPICS * WORDS + torch.randint(FILLER, (count, length), generator=chance)
    evidence = torch.rand(count, length, generator=chance) < 96 / length
    honest = torch.rand(count, length, generator=chance) < 0.4
    other = torch.randint(TOPICS, (count, length), generator=chance)
    about = torch.where(honest, topic[:, None], other)
    said = about * WORDS + torch.randint(WORDS, (count, length), generator=chance)
    ends = torch.randint(length // 2, length + 1, (count, 1), generator=chance)
    return torch.where(evidence, said, words), torch.arange(length) >= ends, topic


class Classifier(nn.Module):
    """Words, two layers of an ordinary Transformer encoder, the mean of what is no padding. Their order carries nothing."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(TOPICS * WORDS + FILLER, width)
        layer = nn.TransformerEncoderLayer(width, heads, 2 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.topic = nn.Linear(width, TOPICS)

    def forward(self, words: Tensor, padding: Tensor) -> Tensor:
        x = self.encoder(self.embed(words), src_key_padding_mask=padding)
        counts = (~padding)[..., None].to(x.dtype)
        return self.topic((x * counts).sum(1) / counts.sum(1))


def train(model: nn.Module, args: argparse.Namespace) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), args.lr)
    chance = torch.Generator().manual_seed(args.seed)
    start = perf_counter()
    for step in range(1, args.steps + 1):
        # first short ones, where evidence is easier to tell from filler; then those of full length
        length = args.length // 4 if step <= args.steps // 2 else args.length
        words, padding, topic = documents(args.batch, length, chance)
        loss = cross_entropy(model(words, padding), topic)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % max(1, args.steps // 6) == 0:
            print(
                f"step {step:4}, {length:,} words: loss {loss.item():.3f}, {perf_counter() - start:.0f} s", flush=True
            )


@torch.inference_mode()
def accuracy(model: nn.Module, args: argparse.Namespace, read: int) -> float:
    """Return the accuracy on documents of which only the first `read` words are read."""
    chance = torch.Generator().manual_seed(args.seed + 1)
    right = 0
    for _ in range(args.tests // args.batch):
        words, padding, topic = documents(args.batch, args.length, chance)
        right += int((model(words[:, :read], padding[:, :read]).argmax(-1) == topic).sum())
    return right / (args.tests // args.batch * args.batch)


def step_seconds(args: argparse.Namespace, *, softmax: bool) -> float:
    """Time forward and backward on one batch: the better of two after one to warm up."""
    model = Classifier(args.width, args.heads)
    if not softmax:
        replace_attention(model)
    words, padding, topic = documents(args.batch, args.length, torch.Generator().manual_seed(0))
    seconds = []
    for _ in range(3):
        start = perf_counter()
        cross_entropy(model(words, padding), topic).backward()
        seconds.append(perf_counter() - start)
    return min(seconds[1:])


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--length", type=int, default=2048, help="words in a document, at most")
    parser.add_argument("--steps", type=int, default=240)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--tests", type=int, default=128, help="documents to test on")
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--heads", type=int, default=2)
    parser.add_argument("--lr", type=float, default=5e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--compare", action="store_true", help="time a step with softmax too")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    torch.manual_seed(args.seed)
    model = Classifier(args.width, args.heads)
    replaced = replace_attention(model)  # the one line that makes it linear
    print(f"Fastmax in {', '.join(replaced.replaced)}")
    train(model, args)
    model.eval()
    for read in (args.length // 16, args.length // 4, args.length):
        print(f"the first {read:5,} words read: {accuracy(model, args, read):4.0%} right (chance: {1 / TOPICS:.0%})")
    if args.compare:
        fastmax, softmax = (step_seconds(args, softmax=which) for which in (False, True))
        print(f"a training step: {fastmax:.2f} s with Fastmax, {softmax:.2f} s with softmax")


if __name__ == "__main__":
    main()
