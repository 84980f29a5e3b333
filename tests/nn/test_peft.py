"""PEFT adapts FastmaxAttention as it does nn.MultiheadAttention."""

import pytest
import torch
from torch import nn

from fastmax.nn import replace_attention
from tests.nn.test_replace import PADDING, TRIANGLE, B, Calls, E, H, L, new_layer
from tests.support import randn

peft = pytest.importorskip("peft")


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_lora_on_the_attention_of_an_encoder(mode: str) -> None:
    model = nn.TransformerEncoder(new_layer(), 2, enable_nested_tensor=False)
    replace_attention(model)
    x = randn(B, L, E)
    plain = model.eval()(x, src_key_padding_mask=PADDING).detach()
    config = peft.LoraConfig(target_modules=["self_attn"], r=2, init_lora_weights=True)
    adapted = peft.get_peft_model(model, config)
    getattr(adapted, mode)()
    assert adapted.get_nb_trainable_parameters()[0] > 0
    torch.testing.assert_close(adapted(x, src_key_padding_mask=PADDING), plain)
    optimizer = torch.optim.SGD([p for p in adapted.parameters() if p.requires_grad], lr=0.1)
    losses = []
    for _ in range(5):
        loss = adapted(x, mask=~TRIANGLE).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    with torch.no_grad(), Calls() as calls:
        adapted.eval()(x, src_key_padding_mask=PADDING)
    assert calls.count == 2, "softmax would run if the encoder layer took its fused path"
    merged = adapted.merge_and_unload().eval()
    with torch.no_grad(), Calls() as calls:
        merged(x, src_key_padding_mask=PADDING)
    assert calls.count == 2


def test_adapted_heads_stay_even() -> None:
    """The encoder layer takes no fused path for odd heads: with those the tests above would prove nothing."""
    assert H % 2 == 0
