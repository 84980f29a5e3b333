"""The examples that make up their data run at a tiny size, print what they promise, and learn from one seed alike."""

import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.support import example

TINY = {
    "long_document": ("--length", "64", "--steps", "2", "--batch", "2", "--tests", "4", "--width", "8", "--compare"),
    "streaming": ("--characters", "300", "--piece", "64", "--every", "128", "--width", "16", "--layers", "1"),
    "image_patches": ("--side", "20", "--steps", "2", "--batch", "4", "--width", "8", "--heads", "2"),
}


def output(name: str, arguments: tuple[str, ...], patch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    patch.setattr(sys, "argv", [f"{name}.py", *arguments])
    example(name).main()
    return capsys.readouterr().out


def test_long_documents(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    said = output("long_document", TINY["long_document"], monkeypatch, capsys).splitlines()
    assert said[0] == "Fastmax in encoder.layers.0.self_attn, encoder.layers.1.self_attn"
    assert [line.split("words")[0].split()[-1] for line in said if line.startswith("the first")] == ["4", "16", "64"]
    assert said[-1].startswith("a training step: ")


def test_documents_have_evidence_and_padding() -> None:
    import torch

    module = example("long_document")
    words, padding, topic = module.documents(50, 400, torch.Generator().manual_seed(0))
    assert padding[:, :200].logical_not().all()
    assert padding.any()
    about = words // module.WORDS
    counts = torch.stack([(about == kind).sum(1) for kind in range(module.TOPICS)], 1)
    assert (counts.argmax(1) == topic).double().mean() > 0.9


def test_streaming(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [line.split() for line in output("streaming", TINY["streaming"], monkeypatch, capsys).splitlines()[1:]]
    assert [row[0] for row in rows] == ["128", "256", "320"]
    assert len({row[2] for row in rows}) == 1, "the states do not grow"
    assert all(0 < float(row[1]) < 7 for row in rows)


def test_streaming_reads_a_file_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "text.txt"
    text.write_text("ä" * 100, encoding="utf-8")  # two bytes each
    module = example("streaming")
    pieces = list(module.numbered(iter(text.read_text(encoding="utf-8")), 64))
    assert [piece.shape[1] for piece in pieces] == [65, 65, 65, 8]
    output("streaming", (*TINY["streaming"], "--text", str(text)), monkeypatch, capsys)


def test_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib").use("Agg")
    picture = tmp_path / "patches.png"
    said = output("image_patches", (*TINY["image_patches"], "--picture", str(picture)), monkeypatch, capsys)
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert all(f"\n{shape}" in said for shape in ("disc", "stripes", "cross", "ring"))
    softmax = output("image_patches", (*TINY["image_patches"], "--attention", "softmax"), monkeypatch, capsys)
    assert "Fastmax" not in softmax


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny BERT with its tokenizer, as save_pretrained leaves them."""
    transformers = pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("encoder")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "one", "two", "three", "four"]
    (folder / "vocab.txt").write_text("\n".join(words))
    transformers.BertTokenizerFast(vocab={word: i for i, word in enumerate(words)}).save_pretrained(folder)
    config = transformers.BertConfig(
        vocab_size=len(words),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=32,
    )
    transformers.BertModel(config).save_pretrained(folder)
    return folder


@pytest.mark.slow
def test_an_encoder_is_swapped_and_taught(
    encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "text.txt"
    text.write_text("\n".join(("one two three", "two four four one", "three two one one four") * 8))
    tiny = ("--transfer-steps", "2", "--distill-steps", "1", "--batch", "2", "--tests", "1")
    common = ("--model", str(encoder), "--text", str(text), *tiny)
    said = output("swap_encoder", (*common, "--save", str(tmp_path / "student")), monkeypatch, capsys)
    assert said.startswith("1 layers ran Fastmax\nswapped: cosine to the softmax model's embeddings ")
    assert "\nconverted: cosine " in said
    assert (tmp_path / "student" / "config.json").is_file()
    text.write_text("one\n")
    with pytest.raises(SystemExit, match="the text must have at least 8 lines, it has 1"):
        output("swap_encoder", common, monkeypatch, capsys)


def test_every_example_has_a_page_and_a_module_docstring() -> None:
    folder = Path(__file__).parent.parent / "examples"
    page = (folder.parent / "docs" / "examples.md").read_text(encoding="utf-8")
    for path in [*folder.glob("*.py"), *folder.glob("*.ipynb")]:
        if path.name == "convert_common.py":
            continue
        assert f"(../examples/{path.name})" in page, path.name
    modules: list[ModuleType] = [example(name) for name in TINY]
    assert all(module.__doc__ and "python examples/" in module.__doc__ for module in modules)
