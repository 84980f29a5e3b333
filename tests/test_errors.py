"""Bad input: each refusal is a ValueError (TypeError for a wrong type) that says what was expected and what came."""

from typing import Any

import pytest
import torch

from fastmax import attention_matrix, fastmax_attention, fastmax_varlen_attention, reference_attention
from tests.support import randn

Q, K, V = torch.randn(2, 4, 9, 3), torch.randn(2, 4, 7, 3), torch.randn(2, 4, 7, 5)
MASK = torch.ones(2, 1, 1, 7, dtype=torch.bool)
META = torch.empty(2, 4, 7, 3, device="meta")

SHARED: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"query": [[1.0]]}, TypeError, "query must be a torch.Tensor, got list"),
    ({"key": None}, TypeError, "key must be a torch.Tensor, got NoneType"),
    ({"query": torch.randn(3)}, ValueError, r"query must be \(..., N, D\), got shape \(3,\)"),
    ({"query": Q.long()}, ValueError, "query must be float64, float32, bfloat16 or float16, got torch.int64"),
    ({"key": K.to(torch.complex64)}, ValueError, "key must be float64.*got torch.complex64"),
    ({"query": Q[..., :0], "key": K[..., :0]}, ValueError, r"at least one channel, got shape \(2, 4, 9, 0\)"),
    ({"key": META}, ValueError, "on one device, got cpu, meta"),
    ({"key": K[..., :2]}, ValueError, "same head dimension, got 3 and 2"),
    ({"query": Q[:, :3]}, ValueError, r"leading dimensions.*query \(2, 3, 9, 3\).*enable_gqa=True"),
    ({"query": Q[:, :3], "enable_gqa": True}, ValueError, "multiple of the number of key heads"),
    ({"query": Q[0, 0], "enable_gqa": True}, ValueError, r"query must be \(..., heads, N, D\), got shape \(9, 3\)"),
    ({"order": 0}, ValueError, "order must be from 1 to 4, got 0"),
    ({"order": 5}, ValueError, "order must be from 1 to 4, got 5"),
    ({"order": 2.0}, TypeError, "order must be an int, got 2.0"),
    ({"order": True}, TypeError, "order must be an int, got True"),
    ({"is_causal": 1}, TypeError, "is_causal must be True or False, got 1"),
    ({"normalize": "yes"}, ValueError, "normalize must be True, False or \"rms\", got 'yes'"),
    ({"enable_gqa": None}, TypeError, "enable_gqa must be True or False, got None"),
    ({"scale": float("nan")}, ValueError, "scale must be finite, got nan"),
    ({"scale": float("inf")}, ValueError, "scale must be finite, got inf"),
    ({"scale": "big"}, TypeError, "scale must be a number, a tensor or None, got 'big'"),
    ({"scale": torch.ones(3)}, ValueError, r"one per query head, shape \(4,\), got shape \(3,\)"),
    ({"scale": torch.ones(4, dtype=torch.int64)}, ValueError, "scale must be a floating-point tensor, got torch.int64"),
    ({"scale": torch.ones(4, device="meta")}, ValueError, "scale must be on cpu as query is, got meta"),
    ({"attn_mask": [True]}, TypeError, "attn_mask must be a torch.Tensor or None, got list"),
    ({"attn_mask": MASK.float()}, ValueError, "attn_mask must be boolean, True where a key counts, got torch.float32"),
    ({"attn_mask": MASK.to("meta")}, ValueError, "attn_mask must be on cpu as query is, got meta"),
    ({"attn_mask": torch.ones(9, 7).tril().bool()}, ValueError, r"not vary with the query.*\(9, 7\).*is_causal=True"),
    ({"attn_mask": MASK[..., :5]}, ValueError, r"attn_mask must broadcast to \(2, 4, 1, 7\).*got shape \(2, 1, 1, 5\)"),
    ({"attn_mask": MASK.expand(3, 2, 1, 1, 7)}, ValueError, r"got shape \(3, 2, 1, 1, 7\)"),
    ({"attn_mask": MASK.repeat(1, 3, 1, 1)}, ValueError, r"got shape \(2, 3, 1, 7\)"),
    ({"attn_mask": torch.tensor(True)}, ValueError, r"got shape \(\)"),
]

WITH_VALUES: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"value": "v"}, TypeError, "value must be a torch.Tensor, got str"),
    ({"value": V[:, :, :6]}, ValueError, "key and value must have the same length, got 7 and 6"),
    (
        {"value": V[:, :2], "query": Q, "enable_gqa": True},
        ValueError,
        "key and value must have the same number of heads",
    ),
    ({"dropout_p": 1.0}, ValueError, r"dropout_p must be in \[0, 1\), got 1.0"),
    ({"dropout_p": -0.1}, ValueError, r"dropout_p must be in \[0, 1\), got -0.1"),
    ({"dropout_p": float("nan")}, ValueError, r"dropout_p must be in \[0, 1\), got nan"),
    ({"dropout_p": "0.1"}, TypeError, "dropout_p must be a number, got '0.1'"),
]

OWN: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"scale": torch.tensor([1.0, 2.0, float("nan"), 0.0])}, ValueError, "scale must be finite, got .*nan"),
    ({"return_state": 1}, TypeError, "return_state must be True or False, got 1"),
    ({"backend": "cuda"}, ValueError, "backend must be one of auto, .*chunked, got 'cuda'"),
    ({"backend": 3}, TypeError, "backend must be a string, got int"),
    ({"initial_state": 0}, TypeError, "initial_state must be a torch.Tensor or None, got int"),
    ({"initial_state": torch.zeros(2, 4, 4, 6)}, ValueError, r"\(2, 4, 10, 6\) \(order 2 has 10.*got \(2, 4, 4, 6\)"),
    ({"initial_state": torch.zeros(2, 4, 10, 5)}, ValueError, r"\(2, 4, 10, 6\).*got \(2, 4, 10, 5\)"),
    (
        {"initial_state": torch.zeros(2, 4, 10, 6, dtype=torch.float64)},
        ValueError,
        "must be torch.float32.*got torch.float64",
    ),
    ({"initial_state": torch.zeros(2, 4, 10, 6, device="meta")}, ValueError, "must be on cpu as query is, got meta"),
]


def call(f: Any, change: dict[str, Any]) -> Any:
    arguments = {"query": Q, "key": K, "value": V} | change
    if f is attention_matrix:
        del arguments["value"]
    return f(**arguments)


@pytest.mark.parametrize("f", [fastmax_attention, reference_attention, attention_matrix])
@pytest.mark.parametrize(("change", "error", "message"), SHARED)
def test_refused_by_all(f: Any, change: dict[str, Any], error: type[Exception], message: str) -> None:
    call(f, {})
    with pytest.raises(error, match=message):
        call(f, change)


@pytest.mark.parametrize("f", [fastmax_attention, reference_attention])
@pytest.mark.parametrize(("change", "error", "message"), WITH_VALUES)
def test_refused_where_there_are_values(f: Any, change: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call(f, change)


@pytest.mark.parametrize(("change", "error", "message"), OWN)
def test_refused_by_the_op(change: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call(fastmax_attention, change)


def test_a_state_is_not_shared_by_heads_with_masks_of_their_own() -> None:
    key = K[:, :2]
    with pytest.raises(ValueError, match=r"share its state.*got one mask per query head"):
        fastmax_attention(Q, key, V[:, :2], torch.ones(4, 1, 7).bool(), enable_gqa=True, return_state=True)


def test_the_state_of_another_order_is_refused() -> None:
    _, state = fastmax_attention(Q, K, V, order=1, return_state=True)
    with pytest.raises(ValueError, match=r"order 2 has 10 features at D = 3\), got \(2, 4, 4, 6\)"):
        fastmax_attention(Q, K, V, initial_state=state)


ENDS_Q, ENDS_K = torch.tensor([0, 4, 9]), torch.tensor([0, 3, 7])

PACKED: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"query": Q}, ValueError, r"query must be packed as \(total, heads, D\), got shape \(2, 4, 9, 3\)"),
    ({"cu_seqlens_q": [0, 9]}, TypeError, "cu_seqlens_q must be a torch.Tensor, got list"),
    ({"cu_seqlens_k": ENDS_K.float()}, ValueError, "cu_seqlens_k must be int32 or int64, got torch.float32"),
    ({"cu_seqlens_q": ENDS_Q[None]}, ValueError, r"of shape \(sequences \+ 1,\), got \(1, 3\)"),
    ({"cu_seqlens_q": ENDS_Q[:0]}, ValueError, r"of shape \(sequences \+ 1,\), got \(0,\)"),
    ({"cu_seqlens_q": torch.tensor([0, 9])}, ValueError, "same number of sequences, got 1 and 2"),
    ({"cu_seqlens_q": torch.tensor([0, 5, 4])}, ValueError, r"rise from 0 to the total of 9.*got \[0, 5, 4\]"),
    ({"cu_seqlens_k": torch.tensor([0, 8, 7])}, ValueError, r"cu_seqlens_k must rise.*got \[0, 8, 7\]"),
    ({"cu_seqlens_k": torch.tensor([1, 3, 7])}, ValueError, r"cu_seqlens_k must rise.*got \[1, 3, 7\]"),
    ({"initial_state": torch.zeros(1, 4, 10, 6)}, ValueError, r"\(2, 4, 10, 6\).*got \(1, 4, 10, 6\)"),
    ({"query": 1}, TypeError, "query must be a torch.Tensor, got int"),
]


@pytest.mark.parametrize(("change", "error", "message"), PACKED)
def test_packed_sequences_refused(change: dict[str, Any], error: type[Exception], message: str) -> None:
    arguments: dict[str, Any] = {"query": randn(9, 4, 3), "key": randn(7, 4, 3), "value": randn(7, 4, 5)}
    arguments |= {"cu_seqlens_q": ENDS_Q, "cu_seqlens_k": ENDS_K}
    fastmax_varlen_attention(**arguments)
    with pytest.raises(error, match=message):
        fastmax_varlen_attention(**(arguments | change))
