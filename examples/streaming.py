"""Read a text that never ends, in pieces, with a memory that never grows: a model that learns while it reads.

python examples/streaming.py                         # 120,000 characters, 11 processor seconds
python examples/streaming.py --characters 10000000   # as long as you like: time goes on, memory does not
python examples/streaming.py --text my.txt

Each piece goes on from the state that the one before has left, so the model sees all that came before, faded by its gates.
The loss of a piece is taken before the model learns from it. Gradients end at the beginning of a piece (truncated
backpropagation).
"""

import argparse
import random
import resource
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from time import perf_counter

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fastmax.models import FastmaxLM, LMConfig


def endless(seed: int = 0) -> Iterator[str]:
    """Yield a diary, letter by letter. The person named on a day acts on it, so the name has to be kept for long."""
    chance = random.Random(seed)
    names = ("Anna", "Bertram", "Clara", "Dorian", "Edda", "Falk")
    things = ("a letter", "the lantern", "two apples", "a map", "the key", "old songs")
    verbs = ("found", "lost", "sold", "hid", "carried")
    day = 0
    while True:
        day += 1
        name = chance.choice(names)
        lines = [f"{name} {chance.choice(verbs)} {chance.choice(things)}. " for _ in range(chance.randint(3, 6))]
        yield from f"Day {day % 100}, of {name}. {''.join(lines)}\n"


def numbered(letters: Iterator[str], piece: int) -> Iterator[Tensor]:
    """Yield (1, piece + 1) tokens at a time, bytes of UTF-8; the last of one piece is the first of the next."""
    codes = (code for letter in letters for code in letter.encode())
    held = list(islice(codes, 1))
    while True:
        held += islice(codes, piece)
        if len(held) < 2:
            return
        yield torch.tensor([held])
        held = held[-1:]


def memory() -> float:
    """Return the peak memory of this process, in MB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1e6 if sys.platform == "darwin" else 1e3)


def read(model: FastmaxLM, letters: Iterator[str], args: argparse.Namespace) -> None:
    optimizer = torch.optim.AdamW(model.parameter_groups(0.01), args.lr)
    states = model.new_states(batch=1)
    seen, losses, start, shown = 0, [], perf_counter(), 0
    print("characters   nats per character   kB of states   MB of process   characters per second")
    for tokens in numbered(letters, args.piece):
        guess = model(tokens[:, :-1], states)
        loss = cross_entropy(guess[0], tokens[0, 1:])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        states = [replace(state, attention=state.attention.detach()) for state in states]
        seen += tokens.shape[1] - 1
        losses.append(loss.item())
        if seen - shown >= args.every or seen >= args.characters:
            bytes_kept = sum(state.attention.nbytes for state in states)
            speed = seen / (perf_counter() - start)
            mean = sum(losses) / len(losses)
            print(
                f"{seen:10,}   {mean:18.3f}   {bytes_kept / 1e3:12,.0f}   {memory():13,.0f}   {speed:21,.0f}",
                flush=True,
            )
            losses, shown = [], seen
        if seen >= args.characters:
            return


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, help="a UTF-8 file to read; by default a diary without end is made up")
    parser.add_argument("--characters", type=int, default=120_000, help="bytes to read")
    parser.add_argument("--piece", type=int, default=512, help="characters read at once")
    parser.add_argument("--every", type=int, default=12_000, help="characters between two lines of the table")
    parser.add_argument("--width", type=int, default=96)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def main() -> None:
    args = arguments()
    torch.manual_seed(args.seed)
    model = FastmaxLM(LMConfig(256, args.layers, args.width, args.heads, memory=(2.0, 9.0)))
    letters = endless(args.seed) if args.text is None else iter(args.text.read_text(encoding="utf-8"))
    read(model, letters, args)


if __name__ == "__main__":
    main()
