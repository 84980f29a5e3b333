"""torch.export and ONNX: a small encoder leaves PyTorch and computes the same, at other lengths too."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fastmax.integrations.onnx import export_onnx, plain
from fastmax.integrations.transformers import configure
from tests.integrations.architectures import ARCHITECTURES

BY_NAME = {architecture.model_type: architecture for architecture in ARCHITECTURES}


class Outputs(nn.Module):
    """A model of transformers as a function of two tensors to one."""

    def __init__(self, model: Any, name: str) -> None:
        super().__init__()
        self.model, self.name = model, name

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        more = {"use_cache": False} if self.name == "logits" else {}
        return self.model(input_ids=input_ids, attention_mask=attention_mask, **more)[self.name]


def example(tokens: int) -> tuple[Tensor, Tensor]:
    ids = torch.randint(3, 99, (2, tokens))
    mask = torch.ones_like(ids)
    mask[0, tokens - 3 :] = 0
    return ids, mask


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # the exporter's own
@pytest.mark.parametrize(("name", "output"), [("bert", "last_hidden_state")])
def test_a_model_leaves_pytorch(name: str, output: str, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    model = BY_NAME[name].build("fastmax", torch.float32)
    configure(model, learn_scale=True)
    wrapped = Outputs(model, output).eval()
    tokens = torch.export.Dim("tokens", min=2, max=60)
    shapes = ({1: tokens}, {1: tokens})
    path = tmp_path / "model.onnx"
    export_onnx(wrapped, example(11), path, dynamic_shapes=shapes, input_names=["ids", "mask"])
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    for length in (11, 5, 48):
        ids, mask = example(length)
        with torch.no_grad():
            expected = wrapped(ids, mask)
        (actual,) = session.run(None, {"ids": ids.numpy(), "mask": mask.numpy()})
        assert (torch.from_numpy(actual) - expected)[mask.bool()].abs().max() < 1e-5


@pytest.mark.filterwarnings("ignore")  # the exporter's own
def test_an_exported_program_keeps_the_op_and_its_length_is_free() -> None:
    model = Outputs(BY_NAME["bert"].build("fastmax"), "last_hidden_state")
    tokens = torch.export.Dim("tokens", min=2, max=60)
    program = torch.export.export(model, example(11), dynamic_shapes=({1: tokens}, {1: tokens}))
    for changed in (program, plain(program)):
        targets = {str(node.target) for node in changed.graph.nodes}
        assert ("fastmax.forward.default" in targets) == (changed is program)
        ids, mask = example(29)
        with torch.no_grad():
            difference = (changed.module()(ids, mask) - model(ids, mask))[mask.bool()]
        assert difference.abs().max() < 1e-12


@pytest.mark.filterwarnings("ignore")
def test_what_has_no_place_there_is_refused(tmp_path: Path) -> None:
    model = BY_NAME["llama"].build("fastmax")
    configure(model, decay="learned")
    wrapped = Outputs(model, "logits")
    with pytest.raises(ValueError, match="in training mode"):
        export_onnx(wrapped.train(), example(5), tmp_path / "model.onnx")
    with pytest.raises(ValueError, match="log_decay cannot be exported"):
        export_onnx(wrapped.eval(), example(5), tmp_path / "model.onnx")
    assert not (tmp_path / "model.onnx").exists()
