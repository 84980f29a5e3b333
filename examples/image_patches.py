"""Classify images by their patches, and see which patches the classifier looks at.

python examples/image_patches.py                          # 12 processor seconds
python examples/image_patches.py --picture patches.png    # draws where it looks (needs matplotlib: the extra "report")
python examples/image_patches.py --attention softmax      # the same with nn.MultiheadAttention as it is

The images are made up: a disc, stripes, a cross or a ring, somewhere in noise. Each patch of 4 x 4 pixels is a token.
"""

import argparse
from time import perf_counter

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, unfold

from fastmax import replace_attention

SHAPES = ("disc", "stripes", "cross", "ring")


def images(count: int, side: int, chance: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return (count, 1, side, side) and what is on them."""
    kind = torch.randint(len(SHAPES), (count,), generator=chance)
    size = 4 + 3 * torch.rand(count, 1, 1, generator=chance)
    middle = 8 + (side - 16) * torch.rand(2, count, 1, 1, generator=chance)
    at = torch.arange(side, dtype=torch.float32)
    y, x = at[:, None] - middle[0], at - middle[1]
    far, near = torch.maximum(x.abs(), y.abs()), torch.minimum(x.abs(), y.abs())
    radius = (x.square() + y.square()).sqrt()
    drawn = torch.stack(
        (
            radius <= size,
            (far <= size) & (y % 4 < 2),
            (far <= size) & (near <= 1),
            (radius <= size) & (radius >= size - 1.6),
        )
    )
    noise = 0.3 * torch.randn(count, side, side, generator=chance)
    return (drawn[kind, torch.arange(count)] + noise).unsqueeze(1), kind


class Patches(nn.Module):
    """A small vision Transformer: patches, places, a token that collects, two layers."""

    def __init__(self, side: int, patch: int, width: int, heads: int) -> None:
        super().__init__()
        self.patch = patch
        self.embed = nn.Linear(patch * patch, width)
        self.places = nn.Parameter(0.02 * torch.randn(1 + (side // patch) ** 2, width))
        self.collector = nn.Parameter(torch.zeros(1, 1, width))
        layer = nn.TransformerEncoderLayer(width, heads, 2 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.kind = nn.Linear(width, len(SHAPES))

    def tokens(self, image: Tensor) -> Tensor:
        x = self.embed(unfold(image, self.patch, stride=self.patch).mT)
        return torch.cat((self.collector.expand(len(x), -1, -1), x), 1) + self.places

    def forward(self, image: Tensor) -> Tensor:
        return self.kind(self.encoder(self.tokens(image))[:, 0])

    @torch.no_grad()
    def seen(self, image: Tensor) -> Tensor:
        """Return the weights of the collecting token in the last layer: (B, rows, columns), the mean of the heads."""
        x = self.tokens(image)
        for layer in self.encoder.layers[:-1]:
            x = layer(x)
        last = self.encoder.layers[-1]
        x = last.norm1(x)
        _, weights = last.self_attn(x, x, x, need_weights=True)
        side = image.shape[-1] // self.patch
        return weights[:, 0, 1:].unflatten(-1, (side, side))


def train(model: Patches, args: argparse.Namespace) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), args.lr)
    chance = torch.Generator().manual_seed(args.seed)
    start = perf_counter()
    for step in range(1, args.steps + 1):
        image, kind = images(args.batch, args.side, chance)
        loss = cross_entropy(model(image), kind)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % max(1, args.steps // 6) == 0:
            print(f"step {step:4}: loss {loss.item():.3f}, {perf_counter() - start:.0f} s", flush=True)


def draw(model: Patches, args: argparse.Namespace) -> None:
    from matplotlib import pyplot

    image, kind = images(6, args.side, torch.Generator().manual_seed(args.seed + 2))
    guess, seen = model(image).argmax(-1), model.seen(image)
    figure, axes = pyplot.subplots(2, 6, figsize=(9, 3.4), layout="constrained")
    for i, (above, below) in enumerate(axes.T):
        above.imshow(image[i, 0].numpy(), cmap="gray")
        above.set_title(f"{SHAPES[kind[i]]}: {SHAPES[guess[i]]}", fontsize=9)
        below.imshow(seen[i].numpy(), cmap="magma", vmin=0)
        for axis in (above, below):
            axis.set_xticks([])
            axis.set_yticks([])
    axes[0, 0].set_ylabel("image: guess")
    axes[1, 0].set_ylabel("attention")
    figure.savefig(args.picture, dpi=100)
    print(f"{args.picture} shows six images and where the classifier looks")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--attention", choices=("fastmax", "softmax"), default="fastmax")
    parser.add_argument("--side", type=int, default=32, help="pixels of an image's side, at least 17")
    parser.add_argument("--patch", type=int, default=4, help="pixels of a patch's side")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--width", type=int, default=48)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--picture", help="a file to draw into, PNG or SVG")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    torch.manual_seed(args.seed)
    model = Patches(args.side, args.patch, args.width, args.heads)
    if args.attention == "fastmax":
        print(f"Fastmax in {', '.join(replace_attention(model).replaced)}")
    train(model, args)
    model.eval()
    image, kind = images(1000, args.side, torch.Generator().manual_seed(args.seed + 1))
    with torch.inference_mode():
        right = model(image).argmax(-1) == kind
    for number, name in enumerate(SHAPES):
        print(f"{name:6} {right[kind == number].double().mean():4.0%} right")
    if args.picture:
        draw(model, args)


if __name__ == "__main__":
    main()
