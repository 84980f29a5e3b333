"""LoRA on a Fastmax model with PEFT and Trainer: the converted stories260K learns another text.

python examples/convert_stories.py --model DIR --decay gated --save student       # first: the model that is adapted
python examples/lora_stories.py --model DIR --student student --text shakespeare.txt --compare

The last tenth of the text is held out. --compare adapts the softmax teacher in the same way. The adapter is saved, loaded
into the model again and merged, and the three must agree.
"""

import argparse
import json
from pathlib import Path
from tempfile import TemporaryDirectory
from time import process_time

import torch
from convert_common import append, perplexity, quiet, read_text, windows
from convert_stories import Tokenizer, load
from peft import LoraConfig, PeftModel, get_peft_model
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel, Trainer, TrainingArguments

from fastmax.integrations.transformers import register


def adapt(
    model: PreTrainedModel, rows: list[dict[str, Tensor]], folder: str, args: argparse.Namespace
) -> tuple[PeftModel, float]:
    """Train LoRA on the four projections of every attention, save it in `folder`, and return the processor's seconds."""
    config = LoraConfig(
        r=args.rank,
        lora_alpha=2 * args.rank,
        target_modules=["q_proj", "k_proj", "v_proj", "o_proj"],
        task_type="CAUSAL_LM",
    )
    adapted = get_peft_model(model, config)
    how = TrainingArguments(
        folder,
        max_steps=args.steps,
        per_device_train_batch_size=args.batch,
        learning_rate=args.lr,
        lr_scheduler_type="cosine",
        warmup_steps=args.steps // 10,
        logging_steps=max(1, args.steps // 5),
        save_strategy="no",
        dataloader_pin_memory=torch.accelerator.is_available(),
        report_to=[],
        seed=args.seed,
        disable_tqdm=args.quiet,
    )
    data = [{"input_ids": row, "labels": row} for batch in rows for row in batch["input_ids"]]
    start = process_time()
    Trainer(model=adapted, args=how, train_dataset=data).train()
    adapted.save_pretrained(folder)
    return adapted.eval(), process_time() - start


def arguments() -> argparse.Namespace:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", type=Path, required=True, help="folder with stories260K.bin and tok512.bin")
    p.add_argument("--student", type=Path, required=True, help="folder that convert_stories.py --save wrote")
    p.add_argument("--text", type=Path, required=True, help="what is to be learned")
    p.add_argument("--compare", action="store_true", help="adapt the softmax teacher too")
    p.add_argument("--steps", type=int, default=150)
    p.add_argument("--batch", type=int, default=8)
    p.add_argument("--length", type=int, default=192)
    p.add_argument("--rank", type=int, default=8)
    p.add_argument("--lr", type=float, default=5e-3)
    p.add_argument("--characters", type=int, default=300000, help="of the text")
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--quiet", action="store_true", help="no bar")
    p.add_argument("--out", type=Path, help="append the result to this file of JSON lines")
    return p.parse_args()


def main() -> None:
    args = arguments()
    quiet()
    torch.set_num_threads(args.threads)
    register()
    numbers = Tokenizer(args.model / "tok512.bin").encode(read_text(args.text)[: args.characters])
    rows = windows(torch.tensor(numbers), args.length, 1)
    train, test = rows[: -len(rows) // 10], rows[-len(rows) // 10 :][:40]
    if not train:
        raise SystemExit(f"the text has {len(numbers)} tokens; ten pieces of {args.length} are needed")
    found: dict[str, dict[str, float]] = {}
    models = {"fastmax": lambda: AutoModelForCausalLM.from_pretrained(args.student)}
    if args.compare:
        models["softmax"] = lambda: load(args.model)
    for name, new in models.items():
        torch.manual_seed(args.seed)
        before = perplexity(new(), test)
        with TemporaryDirectory() as folder:
            adapted, seconds = adapt(new(), train, folder, args)
            again = PeftModel.from_pretrained(new(), folder).eval()
        x = test[0]["input_ids"]
        with torch.no_grad():
            reloaded, merged = again(x).logits, again.merge_and_unload()(x).logits
            apart = max((y - adapted(x).logits).abs().max().item() for y in (reloaded, merged))
        found[name] = {
            "before": round(before, 3),
            "after": round(perplexity(adapted, test), 3),
            "adapter_parameters": adapted.get_nb_trainable_parameters()[0],
            "cpu_seconds": round(seconds, 1),
            "saved_loaded_merged_apart": apart,
        }
        print(json.dumps({name: found[name]}), flush=True)
    append(args, found)


if __name__ == "__main__":
    main()
