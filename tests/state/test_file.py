"""States on disk: what is read is what was written, whatever happens to the writer; anything else is refused."""

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from fastmax.state import FastmaxState
from tests.state.test_state import complete
from tests.support import randn

HEADS, D, WORDS = 2, 8, 17


class Decoder(nn.Module):
    """One layer of causal attention over words: greedy, so that equal states give equal words."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.embed = nn.Embedding(WORDS, HEADS * D)
        self.qkv = nn.Linear(HEADS * D, 3 * HEADS * D)
        self.head = nn.Linear(HEADS * D, WORDS)

    @torch.no_grad()
    def forward(self, word: Tensor, state: FastmaxState) -> Tensor:
        q, k, v = (x.reshape(1, HEADS, 1, D) for x in self.qkv(self.embed(word)).chunk(3, -1))
        logits: Tensor = self.head(state.step(q, k, v).reshape(1, -1))
        # what was just said is not said again, or greedy decoding would soon repeat itself
        return logits.index_fill(1, word, -torch.inf).argmax(-1)


def new_state() -> FastmaxState:
    return FastmaxState.empty(1, HEADS, D, order=2, scale=torch.tensor([0.5, 0.7]), normalize=True)


def decode(word: Tensor, state: FastmaxState, count: int) -> list[int]:
    model, words = Decoder(), []
    for _ in range(count):
        word = model(word, state)
        words.append(int(word))
    return words


DIES = """
import os, signal, sys
import torch
from tests.state.test_file import Decoder, decode, new_state

path, after, how = sys.argv[1], int(sys.argv[2]), sys.argv[3]
torch.set_num_threads(1)
state = new_state()
words = decode(torch.tensor([3]), state, after)
state.save(path)
print(words[-1], flush=True)
if how == "writing":  # dies with the next state written, but not yet in place
    os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
    decode(torch.tensor([words[-1]]), state, 5)
    state.save(path)
elif how == "exit":
    os._exit(9)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("how", "code"), [("killed", -signal.SIGKILL), ("writing", -signal.SIGKILL), ("exit", 9)])
def test_decoding_goes_on_where_a_killed_process_stopped(tmp_path: Path, how: str, code: int) -> None:
    whole = decode(torch.tensor([3]), new_state(), 24)
    assert len(set(whole)) > 3, "words that never change would prove nothing"
    path = tmp_path / "state.safetensors"
    here = Path(__file__).parent.parent
    child = subprocess.run(
        [sys.executable, "-c", DIES, str(path), "11", how],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(here), str(here / "src")])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert child.returncode == code, child.stderr
    state = FastmaxState.load(path)
    assert state.tokens.tolist() == [11]
    assert decode(torch.tensor([int(child.stdout)]), state, 13) == whole[11:]


@pytest.mark.parametrize("scale", [0.1, 1.0, torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)], ids=str)
@pytest.mark.parametrize("options", [{}, {"order": 3, "normalize": False, "dtype": torch.float32}], ids=["", "other"])
@pytest.mark.parametrize("count", [0, 5, 40])
def test_round_trip(tmp_path: Path, scale: Any, options: dict[str, Any], count: int) -> None:
    state = FastmaxState.empty(2, 2, 4, 3, **complete({"scale": scale, "dtype": torch.float64, **options}, 4))
    state.update(randn(2, 2, count, 4, dtype=state.dtype), randn(2, 2, count, 3, dtype=state.dtype))
    state.save(tmp_path / "state")
    assert [path.name for path in tmp_path.iterdir()] == ["state"]
    twin = FastmaxState.load(str(tmp_path / "state"))
    assert repr(twin) == repr(state)
    assert torch.equal(twin.tensor, state.tensor)
    assert torch.equal(twin.tokens, state.tokens)
    q = randn(2, 4, 3, 4, dtype=state.dtype)
    assert torch.equal(twin.read(q), state.read(q))


def test_a_failed_save_leaves_no_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "state"
    new_state().save(path)
    before = path.read_bytes()

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space left"):
        new_state().repeat_interleave(2).save(path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["state"]


def test_a_truncated_file_is_refused_at_any_length(tmp_path: Path) -> None:
    path = tmp_path / "state"
    new_state().save(path)
    data = path.read_bytes()
    for length in (0, 1, 8, 100, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:length])
        with pytest.raises(ValueError, match=r"does not hold a FastmaxState: .* is not a whole safetensors file"):
            FastmaxState.load(path)


@pytest.mark.parametrize("content", [b"hello", b"\x00" * 64, b"PK\x03\x04" + b"x" * 100], ids=["text", "zeros", "zip"])
def test_a_foreign_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "state").write_bytes(content)
    with pytest.raises(ValueError, match=r"state does not hold a FastmaxState: .* is not a whole safetensors file"):
        FastmaxState.load(tmp_path / "state")


def test_a_missing_file_is_missing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        FastmaxState.load(tmp_path / "state")


def rewrite(path: Path, tensors: dict[str, Tensor], metadata: dict[str, Any]) -> None:
    """The file of a state of 17 tokens with these entries changed; None takes one away."""
    whole = FastmaxState.empty(2, 2, 4, 3, **complete({}, 4))
    whole.update(torch.randn(2, 2, 17, 4), torch.randn(2, 2, 17, 3))
    state = whole.state_dict()
    kept = {name: x for name, x in state.items() if isinstance(x, Tensor)} | tensors
    texts = {name: json.dumps(x) for name, x in state.items() if not isinstance(x, Tensor)}
    texts = {
        "format": "fastmax.state",
        **texts,
        **{name: x if name == "format" else json.dumps(x) for name, x in metadata.items()},
    }
    safetensors.torch.save_file(
        {name: x for name, x in kept.items() if x is not None},
        path,
        {name: x for name, x in texts.items() if x not in (None, "null")},
    )


@pytest.mark.parametrize(
    ("tensors", "metadata", "message"),
    [
        ({}, {"format": "other"}, r"its format must be fastmax\.state, got other"),
        ({}, {"format": None}, r"its format must be fastmax\.state, got None"),
        ({}, {"version": 2}, "the version must be 1, got 2"),
        ({}, {"order": None}, "a state has the entries .*order.*; got normalize"),
        ({}, {"order": 3}, r"F = 35 for order 3 at D = 4, got \(2, 2, 15, 4\)"),
        ({}, {"order": 10**400}, "order must be at least 1 and at most 4"),
        ({}, {"order": 9}, "order must be at least 1 and at most 4, got 9"),
        ({}, {"order": "2"}, "order must be of type int, got '2'"),
        ({}, {"normalize": 1}, "normalize must be True, False or .rms., got 1"),
        ({"recent_keys": torch.zeros(2, 2, 8, 5)}, {}, r"F = 21 for order 2 at D = 5, got \(2, 2, 15, 4\)"),
        ({"recent_values": torch.zeros(2, 2, 8, 5)}, {}, r"sum must fit recent_keys .*got \(2, 2, 15, 4\)"),
        ({}, {"scale": float("nan")}, "scale must be finite, got nan"),
        ({}, {"scale": 10**400}, "scale must be finite, got 1000"),
        ({"scale": torch.tensor([1.0, torch.nan])}, {"scale": None}, r"scale must be finite, got \[1\.0, nan\]"),
        (
            {"scale": torch.ones(2).to(torch.float8_e5m2)},
            {"scale": None},
            "scale must be float64, float32, bfloat16 or",
        ),
        ({"scale": torch.ones(3)}, {"scale": None}, "a multiple of the 2 key heads, got 3"),
        ({}, {"scale": "1"}, "scale must be a number or a tensor, got '1'"),
        ({}, {"extra": 1}, "a state has the entries .*; got extra"),
        ({"tokens": None}, {}, "a state has the entries .*tokens.*; got"),
        ({"tokens": torch.zeros(3, dtype=torch.int64)}, {}, r"tokens must be int64 of shape \(2,\)"),
        ({"tokens": torch.tensor([5, -1])}, {}, r"tokens must be at least as many as are recent, got \[5, -1\]"),
        ({"sum": torch.zeros(2, 2, 15, 4, dtype=torch.float64)}, {}, r"all sums must be torch\.float32"),
        ({"sum": torch.zeros(4)}, {}, r"sum must have 4 dimensions, got shape \(4,\)"),
        ({"sum": torch.zeros(2, 1, 15, 4)}, {}, r"sum must fit recent_keys .*got \(2, 1, 15, 4\)"),
        ({"recent_keys": torch.zeros(2, 2, 8, 4, dtype=torch.float16)}, {}, "a state must be float32 or float64"),
        ({"recent_keys": torch.zeros(2, 2, 7, 4)}, {}, "recent_keys and recent_values must be of shapes"),
        (
            {"recent_keys": torch.zeros(2, 2, 17, 4), "recent_values": torch.zeros(2, 2, 17, 4)},
            {},
            "at most 16 tokens are recent, got 17",
        ),
        ({"recent_values": torch.full((2, 2, 8, 4), 2.0)}, {}, "the last column of recent_values must be 1"),
        (
            {
                name: torch.zeros(2, 0, rows, 4)
                for name, rows in (("sum", 15), ("recent_keys", 8), ("recent_values", 8))
            },
            {},
            "num_kv_heads must be at least 1, got 0",
        ),
    ],
)
def test_a_file_that_is_not_a_state_is_refused(
    tmp_path: Path, tensors: dict[str, Tensor], metadata: dict[str, Any], message: str
) -> None:
    rewrite(tmp_path / "state", {}, {})
    FastmaxState.load(tmp_path / "state")
    rewrite(tmp_path / "state", tensors, metadata)
    with pytest.raises(ValueError, match=f"does not hold a FastmaxState: .*{message}"):
        FastmaxState.load(tmp_path / "state")


NUMBERS: st.SearchStrategy[Any] = st.one_of(
    st.integers(-3, 70),
    st.sampled_from([0, 2**63, -(2**63), 10**400, 0.5, 1e308, float("nan"), float("inf"), True, None, "2", "", [], {}]),
)
SIZES = st.lists(st.integers(0, 5), max_size=5)
KINDS = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.bool,
    torch.uint8,
    torch.complex64,
]


@given(
    metadata=st.dictionaries(st.sampled_from(["version", "order", "normalize", "scale", "sum", "other"]), NUMBERS),
    tensors=st.dictionaries(
        st.sampled_from(["sum", "recent_keys", "recent_values", "tokens", "scale", "order"]),
        st.tuples(SIZES, st.sampled_from(KINDS), st.sampled_from([0, 1, -1])),
    ),
)
@settings(max_examples=300)
def test_whatever_a_file_holds_it_is_a_state_or_a_value_error(
    tmp_path: Path, metadata: dict[str, Any], tensors: dict[str, tuple[list[int], torch.dtype, int]]
) -> None:
    made = {
        name: torch.full(size, abs(fill) if dtype == torch.uint8 else fill).to(dtype)
        for name, (size, dtype, fill) in tensors.items()
    }
    rewrite(tmp_path / "state", made, metadata)
    loads_or_refuses(tmp_path / "state")


@given(st.data())
@settings(max_examples=300)
def test_whatever_becomes_of_its_bytes_a_file_is_a_state_or_a_value_error(tmp_path: Path, data: st.DataObject) -> None:
    rewrite(tmp_path / "state", {}, {})
    content = bytearray((tmp_path / "state").read_bytes())
    header = 8 + int.from_bytes(content[:8], "little")
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, header - 1))
        length = data.draw(st.integers(0, 3))
        content[at : at + length] = data.draw(st.binary(min_size=length, max_size=length) | st.binary(max_size=3))
    (tmp_path / "state").write_bytes(content)
    loads_or_refuses(tmp_path / "state")


@pytest.mark.parametrize("text", ["[" * 100_000, "NaN", "-Infinity", "1" * 5000, "", "{", "nul", '"'])
@pytest.mark.parametrize("name", ["version", "order", "head_dim", "value_dim", "normalize", "scale"])
def test_metadata_that_is_no_option_is_refused(tmp_path: Path, name: str, text: str) -> None:
    rewrite(tmp_path / "state", {}, {})
    tensors = safetensors.torch.load_file(tmp_path / "state")
    with safetensors.safe_open(tmp_path / "state", "pt") as file:
        metadata = file.metadata()
    safetensors.torch.save_file(tensors, tmp_path / "state", {**metadata, name: text})
    with pytest.raises(ValueError, match="does not hold a FastmaxState"):
        FastmaxState.load(tmp_path / "state")


def loads_or_refuses(path: Path) -> None:
    try:
        state = FastmaxState.load(path)
    except ValueError:
        return
    assert bool((state.tokens >= 0).all())
    size = (state.batch, state.num_kv_heads, 1)
    with torch.no_grad():
        state.step(
            *(torch.zeros(*size, n, dtype=state.dtype) for n in (state.head_dim, state.head_dim, state.value_dim))
        )
