"""Spoken digits from raw sound: every sample of a second at 16 kHz is a token, 16,000 of them.

python examples/spoken_digits.py                                  # Fastmax1; needs espeak-ng (Debian: apt install espeak-ng)
python examples/spoken_digits.py --attention gated                # Fastmax2 with a forget gate
python examples/spoken_digits.py --attention softmax --rate 4000  # a quarter of the samples

espeak-ng speaks the digits in many voices, accents, speeds and pitches. The voices of the test set are not in the training.
"""

import argparse
import itertools
import subprocess
import sys
import wave
from io import BytesIO
from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, interpolate

from fastmax import FastmaxAttention

DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
ACCENTS = ("en-us", "en-gb", "en-gb-scotland", "en-gb-x-rp", "en-029")
VOICES = tuple(f"{kind}{n}" for kind, most in (("m", 8), ("f", 5)) for n in range(1, most + 1))
TEST_VOICES = ("m4", "m7", "f2", "f5")
SPEEDS, PITCHES = (120, 150, 185), (35, 60)
RATE = 16_000
"""Samples in a clip of one second."""


def speak(word: str, accent: str, voice: str, speed: int, pitch: int) -> Tensor:
    """Return what espeak-ng says as RATE samples, from its first sound on."""
    options = ["-v", f"{accent}+{voice}", "-s", str(speed), "-p", str(pitch), "--stdout", word]
    sound = subprocess.run(["espeak-ng", *options], capture_output=True, check=True).stdout
    with wave.open(BytesIO(sound)) as file:
        pcm = np.frombuffer(file.readframes(file.getnframes()), "<i2").astype(np.float32) / 2**15
        wanted = round(len(pcm) * RATE / file.getframerate())
    x = interpolate(torch.from_numpy(pcm)[None, None], wanted, mode="linear")[0, 0]
    x = x[int((x.abs() > 0.01).to(torch.int8).argmax()) :][:RATE]
    return nn.functional.pad(x / x.abs().max(), (0, RATE - len(x)))


def clips(folder: Path) -> dict[str, tuple[Tensor, Tensor]]:
    """Return sounds (count, RATE) and digits of "train" and "test", from a file if they were made before."""
    path = folder / "spoken_digits.npz"
    if not path.exists():
        print("espeak-ng speaks ...", flush=True)
        made: dict[str, list[np.ndarray]] = {}
        for accent, voice, speed, pitch in itertools.product(ACCENTS, VOICES, SPEEDS, PITCHES):
            split = "test" if voice in TEST_VOICES else "train"
            for digit, word in enumerate(DIGITS):
                sound = (speak(word, accent, voice, speed, pitch) * 2**15).clamp(-(2**15), 2**15 - 1)
                made.setdefault(f"{split}_sounds", []).append(sound.to(torch.int16).numpy())
                made.setdefault(f"{split}_digits", []).append(np.int64(digit))
        folder.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(path, **{name: np.stack(of) for name, of in made.items()})
    with np.load(path) as file:
        return {
            split: (
                torch.from_numpy(file[f"{split}_sounds"]).float() / 2**15,
                torch.from_numpy(file[f"{split}_digits"]),
            )
            for split in ("train", "test")
        }


def heard(sounds: Tensor, rate: int, chance: torch.Generator) -> Tensor:
    """Return sounds that begin up to a fifth of a second later, louder or softer, with noise, at a lower rate, (B, N)."""
    late = torch.randint(RATE // 5, (len(sounds), 1), generator=chance)
    at = torch.arange(RATE) - late
    moved = sounds.gather(1, at.clamp(min=0)) * (at >= 0)
    loud = 0.3 + 0.7 * torch.rand(len(sounds), 1, generator=chance)
    noisy = loud * moved + 0.01 * torch.randn(moved.shape, generator=chance)
    return noisy.unflatten(1, (rate, RATE // rate)).mean(-1)


def attention(name: str, width: int, heads: int) -> nn.Module:
    if name == "softmax":
        return nn.MultiheadAttention(width, heads, batch_first=True)
    order, decay = (1, None) if name == "fastmax1" else (2, "gated")
    return FastmaxAttention(width, heads, order=order, decay=decay, batch_first=True)


class Block(nn.Module):
    def __init__(self, name: str, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = attention(name, width, heads)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.mlp(self.norm2(x))


class Listener(nn.Module):
    """Sounds (B, N) -> logits (B, 10): a token for every sample, from a filter of a few milliseconds around it."""

    def __init__(self, name: str, rate: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.filters = nn.Conv1d(1, width, rate // 125 | 1, padding="same")
        self.places = nn.Parameter(0.02 * torch.randn(rate, width))
        self.blocks = nn.Sequential(*(Block(name, width, heads) for _ in range(layers)))
        self.digit = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, len(DIGITS)))

    def forward(self, sounds: Tensor) -> Tensor:
        x = self.filters(sounds.unsqueeze(1)).mT
        x = (1 + 100 * x.square()).log() + self.places  # ears hear loudness by its logarithm
        return self.digit(self.blocks(x).mean(1))


def train(model: Listener, sounds: Tensor, digits: Tensor, args: argparse.Namespace) -> float:
    """Return the median seconds of a step."""
    optimizer = torch.optim.AdamW(model.parameters(), args.lr)
    warmup = max(1, args.steps // 10)
    shape = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / warmup, 1.0) * (1 - 0.95 * step / args.steps)
    )
    chance = torch.Generator().manual_seed(args.seed)
    took = []
    for step in range(1, args.steps + 1):
        start = perf_counter()
        rows = torch.randint(len(sounds), (args.batch,), generator=chance)
        loss = cross_entropy(model(heard(sounds[rows], args.rate, chance)), digits[rows])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        shape.step()
        took.append(perf_counter() - start)
        if step % max(1, args.steps // 10) == 0:
            print(f"step {step:5}: loss {loss.item():.3f}, {sum(took) / 60:.1f} minutes", flush=True)
    return median(took)


@torch.inference_mode()
def accuracy(model: Listener, sounds: Tensor, digits: Tensor, args: argparse.Namespace) -> float:
    chance = torch.Generator().manual_seed(args.seed + 1)
    right = 0
    for part, wanted in zip(sounds.split(args.batch), digits.split(args.batch), strict=True):
        right += int((model(heard(part, args.rate, chance)).argmax(-1) == wanted).sum())
    return right / len(digits)


def record(args: argparse.Namespace, values: dict[str, float]) -> None:
    """Add the result to a file of the lab's measurements."""
    from fastmax_lab.measurements import Recorder, slug

    settings = {name: value for name, value in vars(args).items() if name not in ("record", "data")}
    name = slug(args.attention, args.rate, f"steps{args.steps}", f"seed{args.seed}")
    Recorder("audio", args.record).add(name, settings | {"threads": torch.get_num_threads()}, values)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--attention", choices=("fastmax1", "gated", "softmax"), default="fastmax1")
    parser.add_argument("--rate", type=int, default=RATE, help=f"samples a second, a divisor of {RATE:,}")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--heads", type=int, default=2)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--lr", type=float, default=4e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, help="threads that torch may use")
    parser.add_argument("--data", type=Path, default=Path("data"), help="the folder of the spoken digits")
    parser.add_argument("--record", type=Path, help="a JSONL file to add the result to (needs the lab)")
    args = parser.parse_args()
    if args.rate < 1000 or RATE % args.rate:
        parser.error(f"--rate must be at least 1,000 and divide {RATE:,}, got {args.rate:,}")
    return args


def main() -> None:
    args = arguments()
    if args.threads is not None:
        torch.set_num_threads(args.threads)
    try:
        sounds = clips(args.data)
    except FileNotFoundError:
        sys.exit("espeak-ng is not there: install it, on Debian by `apt install espeak-ng`")
    torch.manual_seed(args.seed)
    model = Listener(args.attention, args.rate, args.width, args.heads, args.layers)
    start = perf_counter()
    of_step = train(model, *sounds["train"], args)
    minutes = (perf_counter() - start) / 60
    right = accuracy(model.eval(), *sounds["test"], args)
    print(f"{args.attention}, {args.rate:,} tokens: {right:.1%} right of unknown voices, {minutes:.1f} minutes")
    if args.record:
        tested = len(sounds["test"][1])
        record(args, {"accuracy": right, "minutes": minutes, "seconds_of_a_step": of_step, "tested": tested})


if __name__ == "__main__":
    main()
