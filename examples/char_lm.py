"""Train a small character model with Fastmax attention on a text, and let it write.

python examples/char_lm.py                        # on a text that it makes up, pieces of 2,048 characters
python examples/char_lm.py --compare              # the same with softmax (needs the lab: pip install ./lab)
python examples/char_lm.py --text my.txt --steps 2000 --layers 4 --width 256 --batch 4
torchrun --nproc-per-node 2 examples/char_lm.py --context-parallel 2 --checkpoint run   # each sequence over two processes

Under torchrun, the processes form a mesh: `--context-parallel` of them share each sequence, and the groups share the batch.
The losses are those of one process. `--checkpoint` writes and resumes by torch.distributed.checkpoint, on any number of them.
"""

import argparse
import os
import random
import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from math import cos, pi
from pathlib import Path
from time import process_time

import torch
from torch import Tensor, distributed
from torch.distributed import checkpoint
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from fastmax.distributed import parallelize
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
    """Return sentences of a tiny grammar, so that the example runs without a file."""
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


def speaks() -> bool:
    """Return True if this process prints to the user."""
    return not distributed.is_initialized() or distributed.get_rank() == 0


def progress(steps: int, title: str, first: int = 0) -> Iterator[int]:
    """Yield the numbers of the steps, with a bar if rich is installed."""
    if find_spec("rich") is not None and speaks():
        from rich.progress import track

        yield from track(range(first, steps), description=title)
        return
    for step in range(first, steps):
        if step % max(1, steps // 10) == 0 and speaks():
            print(f"{title}: step {step:,} of {steps:,}", flush=True)
        yield step


def batch_of(text: Tensor, size: int, length: int, chance: torch.Generator) -> Tensor:
    """Return (size, length + 1): pieces of the text from random places."""
    starts = torch.randint(len(text) - length, (size,), generator=chance)
    return torch.stack([text[start : start + length + 1] for start in starts.tolist()])


def own_part(batch: Tensor, mesh: DeviceMesh | None) -> Tensor:
    """Return the pieces of this process, each cut to its shard of tokens and the one token after it."""
    if mesh is None:
        return batch
    dp, cp = mesh.get_coordinate()
    rows = batch.chunk(mesh["dp"].size())[dp]
    shard = (batch.shape[1] - 1) // mesh["cp"].size()
    return rows[:, cp * shard : (cp + 1) * shard + 1]


def loss_of(model: torch.nn.Module, tokens: Tensor) -> Tensor:
    """Return the loss of the next character at every place, in nats."""
    return cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


def mean_over(mesh: DeviceMesh | None, loss: Tensor) -> float:
    """Average over all processes, whose parts are of equal size."""
    loss = loss.detach().clone()
    if mesh is not None:
        distributed.all_reduce(loss)
        loss /= distributed.get_world_size()
    return loss.item()


@torch.no_grad()
def validation_loss(model: FastmaxLM, text: Tensor, args: argparse.Namespace, mesh: DeviceMesh | None) -> float:
    chance = torch.Generator().manual_seed(0)  # the same places every time
    pieces = [own_part(batch_of(text, args.batch, args.length, chance), mesh) for _ in range(8)]
    return mean_over(mesh, torch.stack([loss_of(model.eval(), piece) for piece in pieces]).mean())


def share_sequences(model: FastmaxLM, mesh: DeviceMesh | None) -> None:
    """Share each sequence over the processes. Shards are of equal length, so nothing has to be compared."""
    if mesh is not None and mesh["cp"].size() > 1:
        parallelize(model, mesh["cp"], check=False)


class Checkpoints:
    """`step-N` in a folder, whole or not there: written beside, then renamed. The older ones go."""

    def __init__(self, folder: Path | None, model: FastmaxLM, optimizer: torch.optim.Optimizer) -> None:
        self.folder, self.model, self.optimizer = folder, model, optimizer

    def resume(self) -> int:
        """Return the step to continue from, 0 if there is no checkpoint."""
        steps = [] if self.folder is None else [int(path.name.split("-")[1]) for path in self.folder.glob("step-*")]
        if self.folder is None or not steps:
            return 0
        held = self._held()
        checkpoint.load(held, checkpoint_id=str(self.folder / f"step-{max(steps)}"))
        set_state_dict(self.model, self.optimizer, model_state_dict=held["model"], optim_state_dict=held["optimizer"])
        return max(steps)

    def save(self, step: int) -> None:
        if self.folder is None:
            return
        partial = self.folder / f"partial-{step}"
        checkpoint.save(self._held(), checkpoint_id=str(partial))  # all processes have written when it returns
        if not distributed.is_initialized() or distributed.get_rank() == 0:
            partial.replace(self.folder / f"step-{step}")
            for other in self.folder.iterdir():
                if other.name != f"step-{step}":
                    shutil.rmtree(other)

    def _held(self) -> dict[str, dict[str, object]]:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": dict(model), "optimizer": dict(optimizer)}


def language_model(config: LMConfig, softmax: bool) -> FastmaxLM:
    """Return the model of the config, with softmax in place of Fastmax if that is asked for."""
    if not softmax:
        return FastmaxLM(config)
    from fastmax_lab.baselines.softmax_layer import SoftmaxAttention

    return FastmaxLM(config, SoftmaxAttention)


def train(
    attention: str, text: Tensor, vocabulary: int, args: argparse.Namespace, mesh: DeviceMesh | None
) -> FastmaxLM:
    """Train with AdamW, warmup and cosine. The seed decides the first weights and all batches, for every attention."""
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
    model = language_model(config, softmax)
    wrapped: torch.nn.Module = model
    if mesh is not None:
        share_sequences(model, mesh)
        wrapped = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameter_groups(0.1), args.lr, betas=(0.9, 0.95))
    checkpoints = Checkpoints(args.checkpoint, model, optimizer)
    chance = torch.Generator().manual_seed(args.seed)
    warmup, start, first = max(1, args.steps // 20), process_time(), checkpoints.resume()
    for _ in range(first):  # the batches before
        batch_of(text, args.batch, args.length, chance)
    model.train()
    loss = torch.full((), torch.nan)
    for step in progress(args.steps, attention, first):
        for group in optimizer.param_groups:
            group["lr"] = args.lr * min(1.0, (step + 1) / warmup) * (0.55 + 0.45 * cos(pi * step / args.steps))
        loss = loss_of(wrapped, own_part(batch_of(text, args.batch, args.length, chance), mesh))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if args.losses is not None:
            shown = mean_over(mesh, loss)
            if speaks():
                with args.losses.open("a") as file:
                    file.write(f"{step} {shown:.6f}\n")
        if (
            step + 1
        ) % args.checkpoint_every == 0:  # after the loss is written: who resumes does not make this step again
            checkpoints.save(step + 1)
    shown = mean_over(mesh, loss)
    if speaks() and first < args.steps:
        seconds = process_time() - start
        print(f"{attention}: training loss {shown:.3f} after {args.steps:,} steps, {seconds:.0f} processor seconds")
    return parallelize(model, None)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="A character model with Fastmax attention.")
    parser.add_argument("--text", type=Path, help="a UTF-8 file; by default a text is made up")
    parser.add_argument(
        "--compare", action="store_true", help="train softmax too, from the same seed; it is in the lab"
    )
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--length", type=int, default=2048, help="characters per training piece")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--width", type=int, default=96)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sample", type=int, default=300, help="characters to write")
    parser.add_argument("--temperature", type=float, default=0.8)
    parser.add_argument(
        "--context-parallel", type=int, default=1, help="processes that share a sequence, under torchrun"
    )
    parser.add_argument("--checkpoint", type=Path, help="a folder to write checkpoints to, and to resume from")
    parser.add_argument("--checkpoint-every", type=int, default=100, help="steps between checkpoints")
    parser.add_argument("--losses", type=Path, help="a file to write the loss of every step to")
    args = parser.parse_args()
    if args.compare and find_spec("fastmax_lab") is None:
        parser.error("--compare needs softmax with the layers of the lab: pip install ./lab")
    return args


def mesh_of(args: argparse.Namespace) -> DeviceMesh | None:
    """Return the mesh of torchrun: groups that share the batch, times those that share a sequence. None for one process."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    shared = args.context_parallel
    if shared < 1 or world % shared:
        raise SystemExit(f"--context-parallel {shared} does not divide the {world} processes that torchrun has started")
    if args.compare and shared > 1:
        raise SystemExit("--compare trains softmax, whose sequence cannot be shared: leave one of the two out")
    if args.batch % (world // shared) or args.length % shared:
        raise SystemExit(f"--batch must be a multiple of {world // shared}, and --length one of {shared}")
    return None if world == 1 else init_device_mesh("cpu", (world // shared, shared), mesh_dim_names=("dp", "cp"))


def main() -> None:
    args = arguments()
    text = made_up_text(100_000) if args.text is None else args.text.read_text(encoding="utf-8")
    letters = sorted(set(text))
    number = {letter: i for i, letter in enumerate(letters)}
    tokens = torch.tensor([number[letter] for letter in text])
    cut = len(tokens) * 9 // 10
    if len(tokens) - cut <= args.length:
        raise SystemExit(f"the text must have more than {10 * args.length:,} characters, it has {len(tokens):,}")
    mesh = mesh_of(args)
    if speaks():
        print(f"{len(text):,} characters, {len(letters)} of them different")
    names = ("fastmax", "softmax") if args.compare else ("fastmax",)
    models = {name: train(name, tokens[:cut], len(letters), args, mesh) for name in names}
    for name, model in models.items():
        share_sequences(model, mesh)
        found = validation_loss(model, tokens[cut:], args, mesh)
        parallelize(model, None)
        if speaks():
            print(f"{name}: validation loss {found:.3f} nats per character")
    writes = speaks()
    if mesh is not None:
        distributed.destroy_process_group()
    if not writes:
        return
    chance = torch.Generator().manual_seed(args.seed)
    written = models["fastmax"].generate(
        tokens[None, cut : cut + 1], args.sample, temperature=args.temperature, generator=chance
    )
    print("".join(letters[i] for i in written[0].tolist()))


if __name__ == "__main__":
    main()
