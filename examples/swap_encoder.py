"""Swap the attention of a pretrained encoder for Fastmax, see that it has to learn, and let it learn from itself.

pip install '.[hf]'
python examples/swap_encoder.py --model sentence-transformers/all-MiniLM-L6-v2 --text my.txt
python examples/swap_encoder.py --model FOLDER --text my.txt --save student --order 4

MODEL is a name of the Hugging Face hub, or a folder that save_pretrained wrote, with its tokenizer; the text has a passage a
line.
For every encoder that uses transformers' attention interface: BERT, RoBERTa, MiniLM, DistilBERT, ...
"""

import argparse
from pathlib import Path
from time import perf_counter

import torch
from torch import Tensor
from transformers import AutoModel, AutoTokenizer, PreTrainedModel

from fastmax.integrations.transformers import configure, verify
from fastmax_lab.conversion import Stage, convert


def batches_of(lines: list[str], tokenizer: object, args: argparse.Namespace) -> list[dict[str, Tensor]]:
    found = []
    for start in range(0, len(lines), args.batch):
        kept = tokenizer(  # type: ignore[operator]
            lines[start : start + args.batch],
            padding=True,
            truncation=True,
            max_length=args.length,
            return_tensors="pt",
        )
        found.append({name: kept[name] for name in ("input_ids", "attention_mask")})
    return found


@torch.inference_mode()
def embeddings(model: PreTrainedModel, batches: list[dict[str, Tensor]]) -> Tensor:
    """Return the mean of the tokens of each passage, of length 1."""
    found = []
    for batch in batches:
        counts = batch["attention_mask"][..., None]
        found.append((model(**batch).last_hidden_state * counts).sum(1) / counts.sum(1))
    return torch.nn.functional.normalize(torch.cat(found), dim=-1)


@torch.inference_mode()
def milliseconds(model: PreTrainedModel, tokens: int) -> float:
    """Time one sequence: the better of two after one to warm up."""
    ids = torch.randint(model.config.vocab_size, (1, tokens))
    found = []
    for _ in range(3):
        start = perf_counter()
        model(input_ids=ids)
        found.append(1000 * (perf_counter() - start))
    return min(found[1:])


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="a name of the hub, or a folder")
    parser.add_argument("--text", type=Path, required=True, help="a UTF-8 file, a passage a line")
    parser.add_argument("--order", type=int, default=2)
    parser.add_argument("--transfer-steps", type=int, default=60, help="every layer alone")
    parser.add_argument("--distill-steps", type=int, default=30, help="the whole")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=128, help="tokens of a passage, at most")
    parser.add_argument("--tests", type=int, default=4, help="batches to compare on, not learned from")
    parser.add_argument("--save", type=Path, help="a folder to save the new model in")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    teacher = AutoModel.from_pretrained(args.model, attn_implementation="sdpa").eval()
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    lines = [line.strip() for line in args.text.read_text(encoding="utf-8").splitlines() if line.strip()]
    batches = batches_of(lines, tokenizer, args)
    if len(batches) < args.tests + 3:
        raise SystemExit(f"the text must have at least {(args.tests + 3) * args.batch} lines, it has {len(lines)}")
    tests, training = batches[: args.tests], batches[args.tests :]
    expected = embeddings(teacher, tests)

    swapped = AutoModel.from_pretrained(args.model, attn_implementation="sdpa").eval()
    configure(swapped, order=args.order)  # in place; the weights stay
    print(verify(swapped, tests[0]))
    cosine = (embeddings(swapped, tests) * expected).sum(-1)
    print(f"swapped: cosine to the softmax model's embeddings {cosine.mean():.3f}, worst {cosine.min():.3f}")

    done = convert(
        teacher,
        training,
        order=args.order,
        transfer=Stage(args.transfer_steps, lr=1e-3),
        distill=Stage(args.distill_steps, lr=2e-4, train="all"),
        loss="embeddings",
        progress=False,
    )
    cosine = (embeddings(done.model, tests) * expected).sum(-1)
    print(f"converted: cosine {cosine.mean():.3f}, worst {cosine.min():.3f}")
    longest = teacher.config.max_position_embeddings
    print(f"a passage of {longest} tokens: softmax {milliseconds(teacher, longest):.1f} ms, ", end="")
    print(f"Fastmax {milliseconds(done.model, longest):.1f} ms")
    if args.save is not None:
        done.model.save_pretrained(args.save)
        tokenizer.save_pretrained(args.save)
        print(f"saved in {args.save}: AutoModel.from_pretrained brings it back once fastmax's register() was called")


if __name__ == "__main__":
    main()
