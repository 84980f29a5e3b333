"""Turn stories260K, a tiny causal language model, into Fastmax in a minute, and compare perplexities.

python examples/convert_stories.py --model DIR --decay gated                   # DIR: stories260K.bin and tok512.bin
python examples/convert_stories.py --model DIR --decay gated --order 4 --text stories.txt --out results.jsonl

The weights are karpathy/tinyllamas, stories260K (MIT). The model is trained on stories that it writes; some of them are
held out. With --text a second text is measured, too.
"""

import struct
from argparse import Namespace
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from convert_common import parser, perplexity, quiet, read_text, record, run, windows
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from fastmax.integrations.transformers import FastmaxCache


def load(folder: Path) -> LlamaForCausalLM:
    """Load llama2.c's format: seven int32, then the weights in fp32, layer by layer of each kind."""
    data = (folder / "stories260K.bin").read_bytes()
    width, hidden, layers, heads, kv_heads, vocabulary, length = struct.unpack("7i", data[:28])
    weights = torch.from_numpy(np.frombuffer(data, np.float32, offset=28).copy())
    head_dim, kv_width, vocabulary = width // heads, width // heads * kv_heads, abs(vocabulary)
    taken = 0

    def take(*shape: int) -> Tensor:
        nonlocal taken
        size = int(np.prod(shape))
        taken += size
        return weights[taken - size : taken].view(shape)

    def halves(w: Tensor, heads: int) -> Tensor:
        """Reorder rotary pairs, which lie side by side in llama2.c and half a head apart in transformers."""
        return w.view(layers, heads, head_dim // 2, 2, width).transpose(2, 3).reshape(layers, heads * head_dim, width)

    state = {"model.embed_tokens.weight": take(vocabulary, width)}
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    kinds = {
        "input_layernorm": take(layers, width),
        "self_attn.q_proj": halves(take(layers, width, width), heads),
        "self_attn.k_proj": halves(take(layers, kv_width, width), kv_heads),
        "self_attn.v_proj": take(layers, kv_width, width),
        "self_attn.o_proj": take(layers, width, width),
        "post_attention_layernorm": take(layers, width),
        "mlp.gate_proj": take(layers, hidden, width),
        "mlp.down_proj": take(layers, width, hidden),
        "mlp.up_proj": take(layers, hidden, width),
    }
    for kind, stack in kinds.items():
        state |= {f"model.layers.{i}.{kind}.weight": w for i, w in enumerate(stack)}
    state["model.norm.weight"] = take(width)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=length,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=2,
        rope_theta=10000.0,
    )
    model = LlamaForCausalLM._from_config(config, attn_implementation="sdpa")
    model.load_state_dict(state)
    return model.eval()


class Tokenizer:
    """Pairs of pieces are joined, the best pair first, as in sentencepiece; a byte b that no piece has is piece b + 3."""

    def __init__(self, path: Path) -> None:
        data, place = path.read_bytes(), 4
        self.pieces: list[bytes] = []
        self.scores: list[float] = []
        while place < len(data):
            score, size = struct.unpack("fi", data[place : place + 8])
            self.pieces.append(data[place + 8 : place + 8 + size])
            self.scores.append(score)
            place += 8 + size
        self.number = {piece: i for i, piece in enumerate(self.pieces)}

    def encode(self, text: str) -> list[int]:
        known: dict[str, list[int]] = {}
        return [i for word in text.split() for i in known.setdefault(word, self._word(" " + word))]

    def _word(self, word: str) -> list[int]:
        found: list[int] = []
        for letter in word:
            encoded = letter.encode()
            found += [self.number[encoded]] if encoded in self.number else [byte + 3 for byte in encoded]
        while True:
            joined = [self.number.get(self.pieces[a] + self.pieces[b]) for a, b in pairwise(found)]
            possible = [(self.scores[number], -place) for place, number in enumerate(joined) if number is not None]
            if not possible:
                return found
            place = -max(possible)[1]
            found[place : place + 2] = [joined[place] or 0]

    def decode(self, numbers: list[int]) -> str:
        return b"".join(self.pieces[i] for i in numbers if i > 2).decode("utf-8", "replace").replace("<0x0A>", "\n")


@torch.no_grad()
def tell(model: LlamaForCausalLM, stories: int, length: int, seed: int) -> Tensor:
    """Return (stories, length): what the model writes, sampled from all of its predictions."""
    torch.manual_seed(seed)
    found = []
    for start in range(0, stories, 128):
        begin = torch.full((min(128, stories - start), 1), 1)
        found.append(
            model.generate(
                begin,
                attention_mask=torch.ones_like(begin),
                do_sample=True,
                top_k=0,
                max_new_tokens=length - 1,
                min_new_tokens=length - 1,
                pad_token_id=2,
            )
        )
    return torch.cat(found)


def arguments() -> Namespace:
    p = parser(
        __doc__, transfer_steps=80, transfer_lr=5e-3, distill_steps=200, distill_lr=1e-3,
    )  # fmt: skip
    p.add_argument("--text", type=Path, help="stories to measure perplexity on besides, a plain text")
    p.add_argument("--samples", type=int, default=1024, help="stories that the teacher tells")
    p.add_argument("--samples-file", type=Path, help="keep them here for the next run")
    p.add_argument("--length", type=int, default=192)
    p.add_argument("--batch", type=int, default=8)
    args = p.parse_args()
    if args.model is None or not (args.model / "stories260K.bin").exists():
        p.error("--model must be a folder with stories260K.bin and tok512.bin (karpathy/tinyllamas)")
    return args


def main() -> None:
    args = arguments()
    quiet()
    torch.set_num_threads(args.threads)
    teacher, tokenizer = load(args.model), Tokenizer(args.model / "tok512.bin")
    if args.samples_file is not None and args.samples_file.exists():
        stories = torch.load(args.samples_file)
    else:
        stories = tell(teacher, args.samples, args.length, args.seed)
        if args.samples_file is not None:
            torch.save(stories, args.samples_file)
    eighth = len(stories) // 8
    texts = {"held_out": [{"input_ids": x} for x in stories[:eighth].split(64)]}
    if args.text is not None:
        numbers = tokenizer.encode(read_text(args.text))
        rows = windows(torch.tensor(numbers), args.length - 1, 1)
        texts["text"] = [
            {"input_ids": torch.cat([torch.ones(1, 1, dtype=torch.long), x["input_ids"]], 1)} for x in rows
        ]
    found: dict[str, dict[str, float]] = {}

    def measure(stage: str, model: LlamaForCausalLM) -> None:
        found[stage] = {f"perplexity_{name}": round(perplexity(model, batches), 3) for name, batches in texts.items()}

    def watch(stage: str, step: int, model: LlamaForCausalLM) -> None:
        if step == getattr(args, f"{stage}_steps", 0):
            measure(stage, model)

    measure("teacher", teacher)
    batches = [{"input_ids": x} for x in stories[eighth:].split(args.batch)]
    done = run(args, teacher, batches, layer_name="model.layers.{}.self_attn", watch=watch)
    begin = torch.tensor([[1, *tokenizer.encode("Once upon a time, there was a little")]])
    cache = FastmaxCache(done.model.config)
    told = done.model.generate(
        begin, attention_mask=torch.ones_like(begin), max_new_tokens=args.length, do_sample=False, past_key_values=cache
    )
    print(tokenizer.decode(told[0].tolist()))
    record(args, found, done)


if __name__ == "__main__":
    main()
