"""`fastmax lra train | eval | sweep`: options to configurations, errors to messages."""

import argparse
import sys
from pathlib import Path
from typing import Any

TASKS = ("listops", "text", "retrieval", "image", "pathfinder")


def add_parser(subparsers: Any) -> None:
    lra = subparsers.add_parser("lra", help="train and test on the Long Range Arena")
    commands = lra.add_subparsers(dest="lra", required=True, metavar="WHAT")
    train = commands.add_parser("train", help="train one attention on one task, then test it")
    train.add_argument("--task", required=True, choices=TASKS)
    train.add_argument(
        "--attention", default="fastmax2", metavar="NAME", help="softmax, fastmax2, ... (default: %(default)s)"
    )
    train.add_argument("--seed", type=int, default=0, metavar="N")
    train.add_argument("--resume", action="store_true", help="continue the run in --out")
    _add_run_options(train, "runs/lra/TASK-ATTENTION-seedN")
    sweep = commands.add_parser("sweep", help="train a grid of tasks and attentions; run it again to go on")
    sweep.add_argument("--tasks", nargs="+", default=list(TASKS), choices=TASKS, metavar="NAME")
    sweep.add_argument("--attentions", nargs="+", metavar="NAME", help="default: the seven of the paper")
    sweep.add_argument("--seeds", nargs="+", type=int, default=[0], metavar="N")
    _add_run_options(sweep, "runs/lra")
    evaluation = commands.add_parser("eval", help="score a checkpoint")
    evaluation.add_argument("checkpoint", type=Path, metavar="FILE", help="a .safetensors file, or the folder of a run")
    evaluation.add_argument("--split", choices=("train", "val", "test"), default="test")
    evaluation.add_argument("--data", type=Path, metavar="DIR", help="folder of the data (default: your cache folder)")


def _add_run_options(parser: argparse.ArgumentParser, out: str) -> None:
    parser.add_argument("--preset", default="skyformer", metavar="NAME", help="skyformer (default), nystrom or google")
    parser.add_argument("--data", type=Path, metavar="DIR", help="folder of the data (default: your cache folder)")
    parser.add_argument("--out", type=Path, metavar="DIR", help=f"where to write (default: {out})")
    parser.add_argument("--scale", default="sqrt", help="of fastmax: paper, sqrt (default) or learned")
    for name, kind, text in (
        ("steps", int, "optimizer steps (default: the preset's, as for all below)"),
        ("batch", int, "examples per step, over all processes"),
        ("lr", float, "peak learning rate"),
        ("warmup", int, "steps of warmup"),
        ("dropout", float, "rate outside of the attention"),
        ("attention-dropout", float, "rate inside of it"),
        ("length", int, "cut sequences to so many tokens"),
        ("train-examples", int, "use only the first so many"),
        ("eval-examples", int, "use only the first so many of dev and test"),
        ("eval-every", int, "steps between looks at the dev set (default: a twentieth of all)"),
    ):
        parser.add_argument(f"--{name}", type=kind, metavar="N" if kind is int else "X", help=text)
    parser.add_argument("--dropout-mode", default="quadratic", help="of fastmax: quadratic (default), standard or 1d")
    parser.add_argument("--precision", default="no", help="no (fp32, default) or bf16 (autocast)")
    parser.add_argument("--checkpoint-every", type=int, default=200, metavar="N", help="steps (default: %(default)s)")
    parser.add_argument("--log-every", type=int, default=10, metavar="N", help="steps (default: %(default)s)")
    parser.add_argument("--threads", type=int, metavar="N", help="threads that torch may use")
    parser.add_argument(
        "--historical",
        nargs="*",
        default=[],
        metavar="FLAG",
        help="behave as old harnesses did: all, or names of quirks",
    )


def run(options: argparse.Namespace) -> int:
    """The exit code. What the user can put right is a message, anything else a traceback."""
    try:
        _check_extra()
        code = {"train": _train, "sweep": _sweep, "eval": _eval}[options.lra](options)
        _leave()
        return code
    except (ValueError, OSError) as error:
        print(f"fastmax lra {options.lra}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nstopped; run it again (train: with --resume) to go on", file=sys.stderr)
        return 130


def _leave() -> None:
    """Ends what joins the processes: its threads, if they still run when the interpreter exits, abort it."""
    from torch import distributed

    if distributed.is_available() and distributed.is_initialized():
        distributed.destroy_process_group()


def _check_extra() -> None:
    from importlib.util import find_spec

    missing = [name for name in ("accelerate", "safetensors", "tensorboard") if find_spec(name) is None]
    if missing:
        raise ValueError(f"{', '.join(missing)} missing: pip install 'fastmax[lra]'")


def _train(options: argparse.Namespace) -> int:
    from fastmax.lra.sweep import folder
    from fastmax.lra.train import is_main_process, train

    config = _config(options, options.task, options.attention, options.seed)
    out = folder(Path("runs/lra"), config) if options.out is None else options.out
    train(config, data=_data(options), out=out, resume=options.resume, pace=_pace(options))
    if is_main_process():
        print(f"written to {out}")
    return 0


def _sweep(options: argparse.Namespace) -> int:
    from fastmax.baselines import SEVEN
    from fastmax.lra import sweep
    from fastmax.lra.train import is_main_process

    out = Path("runs/lra") if options.out is None else options.out
    configs = [
        _config(options, task, attention, seed)
        for seed in options.seeds
        for task in options.tasks
        for attention in options.attentions or SEVEN
    ]
    found = sweep.sweep(configs, data=_data(options), out=out, pace=_pace(options))
    if is_main_process():
        print(sweep.summary(found))
    return 0


def _eval(options: argparse.Namespace) -> int:
    from fastmax.lra import checkpoint
    from fastmax.lra.evaluate import evaluate, load_split
    from fastmax.lra.train import BEST, make_accelerator

    path = options.checkpoint / BEST if options.checkpoint.is_dir() else options.checkpoint
    if not path.exists():
        raise ValueError(f"{path} is not there")
    held = checkpoint.load(path)
    accelerator = make_accelerator(held.config.precision)
    model = accelerator.prepare(held.config.make_model())
    checkpoint.restore(held, model, None)
    score = evaluate(accelerator, model, load_split(held.config, options.split, _data(options)), held.config)
    if accelerator.is_main_process:
        what = f"{held.config.task}, {held.config.attention}, step {held.position.step:,}, {options.split}"
        print(f"{what}: loss {score.loss:.4f}, accuracy {score.accuracy:.4f} ({score.examples:,} examples)")
    return 0


def _config(options: argparse.Namespace, task: str, attention: str, seed: int) -> Any:
    from fastmax.baselines import NAMES
    from fastmax.lra.quirks import Quirks
    from fastmax.lra.run import configure

    if attention not in NAMES:
        raise ValueError(f"attention must be one of {', '.join(NAMES)}, got {attention!r}")
    return configure(
        task,
        attention,
        preset_name=options.preset,
        steps=options.steps,
        batch=options.batch,
        lr=options.lr,
        warmup=options.warmup,
        dropout=options.dropout,
        attention_dropout=options.attention_dropout,
        length=options.length,
        eval_every=options.eval_every,
        quirks=Quirks.named(options.historical),
        scale=options.scale,
        dropout_mode=options.dropout_mode,
        seed=seed,
        train_examples=options.train_examples,
        eval_examples=options.eval_examples,
        precision=options.precision,
    )


def _pace(options: argparse.Namespace) -> Any:
    import torch

    from fastmax.lra.train import Pace

    if options.threads is not None:
        torch.set_num_threads(options.threads)
    return Pace(options.log_every, options.checkpoint_every)


def _data(options: argparse.Namespace) -> Path:
    if options.data is not None:
        return Path(options.data)
    from fastmax.data.files import default_folder

    return default_folder()
