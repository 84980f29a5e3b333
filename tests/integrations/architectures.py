"""Tiny models of many architectures of transformers, with random weights, and inputs for them."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoModelForSeq2SeqLM, PreTrainedModel

VOCABULARY = 99
TOKENS = 11

_SMALL = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "d_model": 32,
    "dim": 32,
    "hidden_dim": 48,
    "embedding_size": 16,
    "intermediate_size": 48,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "d_ff": 48,
    "ffn_dim": 48,
    "num_hidden_layers": 2,
    "num_layers": 2,
    "n_layers": 2,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "num_attention_heads": 4,
    "n_heads": 4,
    "num_heads": 4,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "image_size": 24,
    "patch_size": 8,
    "num_channels": 3,
    "num_experts": 4,
    "num_local_experts": 4,
    "moe_intermediate_size": 16,
}
"""Small sizes; each config takes the fields that it has."""


@dataclass(frozen=True)
class Architecture:
    """A recipe for a tiny model. `rotary` is what the oracle assumes; with `window` some layers have a sliding window.

    The products of experts have no fp64 in torch, so models that have experts are in fp32.
    """

    model_type: str
    kind: str = "decoder"
    rotary: bool = False
    window: bool = False
    changes: dict[str, Any] = field(default_factory=dict)
    dtype: torch.dtype = torch.float64

    def config(self) -> Any:
        fresh = AutoConfig.for_model(self.model_type)
        known = {name for name in _SMALL if name in fresh.to_dict() or name in fresh.attribute_map}
        # of two names for one thing the one that is mapped goes
        known -= {name for name in known if fresh.attribute_map.get(name) in known}
        return AutoConfig.for_model(self.model_type, **{**{name: _SMALL[name] for name in known}, **self.changes})

    def build(self, implementation: str, dtype: torch.dtype | None = None, seed: int = 0) -> PreTrainedModel:
        torch.manual_seed(seed)
        model = _FACTORIES[self.kind].from_config(
            self.config(), attn_implementation=implementation, dtype=dtype or self.dtype
        )
        with torch.no_grad():  # larger than they start, so that it matters where attention looks
            for name, weight in model.named_parameters():
                if weight.dim() == 2 and "embed" not in name and "wte" not in name:
                    weight.mul_(4)
        return model.eval()

    def inputs(self, padding: str | None = None) -> dict[str, Tensor]:
        """Return a batch of two. With `padding` ("left" or "right") the first row has three tokens that do not count."""
        return _INPUTS[self.kind](padding)


_FACTORIES: dict[str, Any] = {
    "decoder": AutoModelForCausalLM,
    "encoder": AutoModel,
    "seq2seq": AutoModelForSeq2SeqLM,
    "vision": AutoModel,
    "speech": AutoModel,
    "whisper": AutoModel,
    "clip": AutoModel,
}


def _ids(padding: str | None = None) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(3, VOCABULARY, (2, TOKENS), generator=generator)
    if padding is None:
        return {"input_ids": ids}
    mask = torch.ones_like(ids)
    mask[0, :3] = 0
    mask = mask if padding == "left" else mask.flip(1)
    return {"input_ids": ids, "attention_mask": mask}


def _random(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


_INPUTS: dict[str, Callable[[str | None], dict[str, Tensor]]] = {
    "decoder": _ids,
    "encoder": _ids,
    "seq2seq": lambda padding: {**_ids(padding), "decoder_input_ids": _ids()["input_ids"][:, :7]},
    "vision": lambda _: {"pixel_values": _random(2, 3, 24, 24)},
    "speech": lambda _: {"input_values": _random(2, 1600)},
    "whisper": lambda _: {"input_features": _random(2, 16, 32), "decoder_input_ids": _ids()["input_ids"][:, :7]},
    "clip": lambda padding: {**_ids(padding), "pixel_values": _random(2, 3, 24, 24)},
}

_TOWER = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
_TWO_KINDS = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 4}

ARCHITECTURES = [
    *(Architecture(name, rotary=True) for name in (
        "llama", "qwen2", "qwen3", "gemma", "olmo", "olmo2", "granite", "glm4", "helium", "stablelm", "smollm3", "nemotron",
        "persimmon", "phi", "gpt_neox", "starcoder2",
    )),
    Architecture("phi3", rotary=True, changes={"pad_token_id": 0}),
    *(Architecture(name, rotary=True, changes={"num_experts_per_tok": 2}, dtype=torch.float32)
      for name in ("mixtral", "qwen2_moe", "qwen3_moe", "olmoe")),
    Architecture("deepseek_v3", rotary=True, dtype=torch.float32, changes={
        "num_key_value_heads": 4, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8,
        "v_head_dim": 8, "n_routed_experts": 4, "n_group": 1, "topk_group": 1, "num_experts_per_tok": 2,
        "first_k_dense_replace": 1,
    }),
    Architecture("diffllama", rotary=True),
    Architecture("gpt2", changes={"n_positions": 64}),
    Architecture("opt", changes={"word_embed_proj_dim": 32}),
    Architecture("mistral", rotary=True, window=True, changes={"sliding_window": None}),
    *(Architecture(name, rotary=True, window=True, changes=_TWO_KINDS)
      for name in ("ministral", "gemma3_text", "olmo3", "cohere2")),
    *(Architecture(name, "encoder")
      for name in ("bert", "roberta", "xlm-roberta", "camembert", "electra", "albert", "distilbert")),
    *(Architecture(name, "encoder", rotary=True) for name in ("nomic_bert", "eurobert", "esm")),
    Architecture("modernbert", "encoder", rotary=True, window=True, changes={"local_attention": 4}),
    *(Architecture(name, "seq2seq") for name in ("bart", "mbart", "marian", "pegasus")),
    Architecture("whisper", "whisper", changes={"num_mel_bins": 16, "max_source_positions": 16, "max_target_positions": 16,
                                               "decoder_start_token_id": 1}),
    Architecture("wav2vec2", "speech", changes={"conv_dim": (16, 16), "conv_stride": (5, 4), "conv_kernel": (10, 4),
                                               "num_feat_extract_layers": 2, "num_conv_pos_embeddings": 4,
                                               "num_conv_pos_embedding_groups": 2}),
    *(Architecture(name, "vision") for name in ("vit", "deit", "beit", "dinov2", "vit_mae")),
    Architecture("dinov3_vit", "vision", rotary=True),
    Architecture("clip", "clip", changes={
        "text_config": {**_TOWER, "vocab_size": VOCABULARY, "max_position_embeddings": 64, "eos_token_id": 2},
        "vision_config": {**_TOWER, "image_size": 24, "patch_size": 8}, "projection_dim": 16,
    }),
    Architecture("siglip", "clip", changes={
        "text_config": {**_TOWER, "vocab_size": VOCABULARY, "max_position_embeddings": 64, "projection_size": 32},
        "vision_config": {**_TOWER, "image_size": 24, "patch_size": 8},
    }),
]  # fmt: skip

REFUSED = [
    Architecture("gemma2", rotary=True, changes={"layer_types": ["full_attention", "full_attention"]}),
    Architecture("gpt_oss", rotary=True, dtype=torch.float32, changes={"layer_types": ["full_attention", "full_attention"]}),
    Architecture("llama4_text", rotary=True, dtype=torch.float32, changes={"attention_chunk_size": 4}),
    Architecture("t5", "seq2seq"),
    Architecture("mt5", "seq2seq"),
    Architecture(
        "swin", "vision", changes={"embed_dim": 16, "depths": [2], "num_heads": [2], "window_size": 2, "patch_size": 4}
    ),
]  # fmt: skip
"""They ask for what Fastmax cannot honour."""

SOME_LAYERS = [
    Architecture("qwen3_next", rotary=True, dtype=torch.float32, changes={
        "layer_types": ["linear_attention", "full_attention"], "num_experts_per_tok": 2, "linear_num_value_heads": 2,
        "linear_num_key_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
    }),
    Architecture("lfm2", rotary=True, changes={"layer_types": ["conv", "full_attention"], "block_multiple_of": 16}),
]  # fmt: skip
"""They have layers of other kinds beside attention."""

WITHOUT = [
    *(Architecture(name, "encoder") for name in ("deberta", "deberta-v2", "mpnet", "big_bird", "longformer")),
    *(Architecture(name) for name in ("mamba", "codegen", "gptj", "falcon", "bloom", "mpt")),
]
"""They do not use the attention interface: the name is ignored, or fails."""
