"""Trainer, LoRA, TRL's packing and pipelines on tiny models: they work as with any other attention."""

import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from packaging.requirements import Requirement
from torch import Tensor
from transformers import PreTrainedTokenizerFast, Trainer, TrainingArguments, pipeline

from fastmax.integrations.transformers import FastmaxCache, configure, verify
from tests.integrations.architectures import ARCHITECTURES
from tests.integrations.properties import outputs

LLAMA = next(architecture for architecture in ARCHITECTURES if architecture.model_type == "llama")
BERT = next(architecture for architecture in ARCHITECTURES if architecture.model_type == "bert")
TEXTS = ["one two three four", "two three four one two", "three four", "four one two three four one"]


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    """Words, made here: nothing is downloaded."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = ["[PAD]", "[BOS]", "[EOS]", "[UNK]", "one", "two", "three", "four"]
    model = models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]")
    inner = Tokenizer(model)
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="[PAD]", bos_token="[BOS]", eos_token="[EOS]", unk_token="[UNK]"
    )


def arguments(path: Path, **more: Any) -> dict[str, Any]:
    return {
        "output_dir": str(path), "max_steps": 3, "per_device_train_batch_size": 2, "learning_rate": 1e-2, "report_to": "none",
        "disable_tqdm": True, "use_cpu": True, "save_strategy": "no", "logging_strategy": "no", **more,
    }  # fmt: skip


class Repeated(torch.utils.data.Dataset[dict[str, Tensor]]):
    """One sequence again and again, some of it padding."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        inputs = LLAMA.inputs("left")
        row = {name: x[index % 2] for name, x in inputs.items()}
        return {**row, "labels": torch.where(row["attention_mask"].bool(), row["input_ids"], -100)}


def test_the_extra_has_the_trainer_and_the_versions_that_are_tested() -> None:
    root = Path(__file__).parent.parent.parent
    extra = tomllib.loads((root / "pyproject.toml").read_text())["project"]["optional-dependencies"]["hf"]
    needed = {Requirement(line).name: Requirement(line) for line in extra}
    assert {"accelerate", "safetensors", "transformers"} == needed.keys()
    allowed = needed["transformers"].specifier
    assert transformers.__version__ in allowed
    major, minor, *_ = (int(part) for part in transformers.__version__.split("."))
    assert f"{major}.{minor + 1}.0" not in allowed  # its internals change from one minor version to the next


def test_trainer_and_lora(tmp_path: Path) -> None:
    """Adapters learn, are saved, loaded and merged; scales per head, which are configured, learn beside them."""
    import peft

    base = LLAMA.build("fastmax", torch.float32)
    configure(base, learn_scale=True)
    config = peft.LoraConfig(
        r=4, target_modules=["q_proj", "v_proj"], modules_to_save=["fastmax"], task_type="CAUSAL_LM"
    )
    model = peft.get_peft_model(base, config)
    before = {name: weight.clone() for name, weight in model.named_parameters() if weight.requires_grad}
    assert any("fastmax" in name for name in before)
    trainer = Trainer(
        model,
        TrainingArguments(**arguments(tmp_path / "run", gradient_checkpointing=True, bf16=True)),
        train_dataset=Repeated(),
    )
    assert trainer.train().training_loss > 0
    after = dict(model.named_parameters())
    moved = [name for name, weight in before.items() if not torch.equal(weight, after[name])]
    assert any("head_scale" in name for name in moved)
    assert any("q_proj.lora_B" in name for name in moved)
    model = trainer.accelerator.unwrap_model(model, keep_fp32_wrapper=False)  # without autocast
    model.eval().save_pretrained(tmp_path / "adapter")
    fresh = LLAMA.build("fastmax", torch.float32)
    configure(fresh, learn_scale=True)
    loaded = peft.PeftModel.from_pretrained(fresh, tmp_path / "adapter").eval()
    inputs = LLAMA.inputs("left")
    expected = outputs(model, inputs)
    mask = inputs["attention_mask"].bool()
    assert torch.allclose(outputs(loaded, inputs)[mask], expected[mask], rtol=0, atol=1e-5)
    merged: Any = loaded.merge_and_unload()
    assert verify(merged, inputs).ok
    assert torch.allclose(outputs(merged, inputs)[mask], expected[mask], rtol=0, atol=1e-4)
    merged.generate(**inputs, max_new_tokens=2, past_key_values=FastmaxCache(merged.config))


def test_trl_packs_and_every_sequence_stays_alone(tmp_path: Path, tokenizer: Any) -> None:
    trl = pytest.importorskip("trl")
    datasets = pytest.importorskip("datasets")
    from fastmax.integrations.transformers import record

    model = LLAMA.build("fastmax", torch.float32)
    config = trl.SFTConfig(**arguments(tmp_path, packing=True, max_length=16, bf16=False, padding_free=True))
    trainer = trl.SFTTrainer(
        model, args=config, train_dataset=datasets.Dataset.from_dict({"text": TEXTS * 4}), processing_class=tokenizer
    )
    batch = next(iter(trainer.get_train_dataloader()))
    assert (batch["position_ids"] == 0).sum() > 2  # several sequences in one row
    with record.recording() as calls:
        assert trainer.train().training_loss > 0
    assert set(calls.values()) == {record.FASTMAX}
    # the loss of the packed row is that of its sequences
    batch = {name: x for name, x in batch.items() if name in ("input_ids", "position_ids")}
    starts = (batch["position_ids"][0] == 0).nonzero().flatten().tolist()
    stops = [*starts[1:], batch["input_ids"].shape[1]]
    boundaries = torch.tensor([*starts, stops[-1]], dtype=torch.int32)
    packed = outputs(
        model.eval(), {**batch, "cu_seq_lens_q": boundaries, "cu_seq_lens_k": boundaries, "use_cache": False}
    )
    for start, stop in zip(starts, stops, strict=True):
        alone = outputs(model, {"input_ids": batch["input_ids"][:, start:stop]})
        assert torch.allclose(packed[:, start:stop], alone, rtol=0, atol=1e-5)


def test_pipelines(tokenizer: Any) -> None:
    model = LLAMA.build("fastmax", torch.float32)
    generate = pipeline("text-generation", model=model, tokenizer=tokenizer, device="cpu")
    options = {"max_new_tokens": 4, "do_sample": False, "return_full_text": False}
    plain = generate(TEXTS[0], **options)
    assert generate(TEXTS[0], past_key_values=FastmaxCache(model.config), **options) == plain
    features = pipeline(
        "feature-extraction", model=BERT.build("fastmax", torch.float32), tokenizer=tokenizer, device="cpu"
    )
    assert len(features(TEXTS[0])[0]) == 4
