"""Tests for GPUs that need none: fake tensors, checks that wait for nothing, the backend that runs."""

import json
import logging
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from fastmax import fastmax_attention, fastmax_varlen_attention, ops, validation
from fastmax.backends import triton
from fastmax.backends.triton import checked, device
from fastmax.call import Call, Options
from fastmax.decay import log_decay_grads
from tests import gpu_report
from tests.backends.test_gpu import no_waiting


@pytest.mark.parametrize("backend", ["auto", "triton", "chunked"])
def test_fake_cuda_tensors(backend: str) -> None:
    with FakeTensorMode():
        q, k, v = (torch.empty(2, heads, 9, 16, device="cuda") for heads in (4, 2, 2))
        o, state = fastmax_attention(q, k, v, is_causal=True, enable_gqa=True, return_state=True, backend=backend)
        assert (o.shape, o.device.type, state.shape) == ((2, 4, 9, 16), "cuda", (2, 2, 153, 17))


def test_fake_gradients() -> None:
    """Without autograd, which a build without CUDA has not for tensors on a GPU, fake ones too."""
    with FakeTensorMode():
        one = call("cuda")
        o, g, state = ops.forward(*one.flatten())
        found = ops.backward(o, g, None, o, None, None, *one.flatten())
        assert [(x.shape, x.device.type) for x in found[:3]] == [(one.q.shape, "cuda")] * 3
        assert state.numel() == 0


def test_fake_packed_cuda_tensors() -> None:
    with FakeTensorMode():
        q, k, v = (torch.empty(20, 2, 16, device="cuda") for _ in range(3))
        cu = torch.empty(4, dtype=torch.int32, device="cuda")
        assert fastmax_varlen_attention(q, k, v, cu, cu, is_causal=True).shape == (20, 2, 16)


def test_checks_of_values_on_a_gpu_wait_for_nothing() -> None:
    with FakeTensorMode():
        x = torch.empty(1, 2, 20, 16, device="cuda")
        cu = torch.empty(4, dtype=torch.int32, device="cuda")
        decay, scale = torch.empty(1, 2, 20, device="cuda"), torch.empty(2, device="cuda")
        call = Call(x, x, x, scale, decay, None, cu, cu.clone(), options=Options(is_causal=True, scale=1.0))
        ops.check_values(call)
        log_decay_grads(decay, cu)
        with pytest.raises(DataDependentOutputException):
            cu.tolist()  # which is what a wait looks like here


def test_the_same_checks_on_the_cpu_say_what_came() -> None:
    cu, other = torch.tensor([0, 4, 9]), torch.tensor([0, 5, 9])
    validation.same_sequences(cu, cu.clone())
    with pytest.raises(ValueError, match="cu_seqlens_q and cu_seqlens_k must be equal, got different ones"):
        validation.same_sequences(cu, other)


def call(where: str, **options: Any) -> Call:
    x = torch.empty(1, 2, 20, 16, device=where)
    return Call(x, x, x, options=Options(scale=1.0, out_dtype=torch.float32)._replace(**options))


def test_tensors_on_the_cpu_are_refused() -> None:
    assert triton.unsupported(call("cpu")) == "it runs on GPUs, and the tensors are on cpu"
    with pytest.raises(ValueError, match='backend="triton" cannot run this call: it runs on GPUs'):
        fastmax_attention(*[torch.randn(1, 2, 5, 4)] * 3, backend="triton")


@pytest.fixture
def _an_a100(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(device, "architecture", lambda _: "sm_80")
    monkeypatch.setattr(device, "triton_version", lambda: (3, 7, 1))
    checked.suggest_doctor.cache_clear()
    checked.is_checked.cache_clear()


@pytest.mark.usefixtures("_an_a100")
def test_auto_waits_for_the_doctor_and_says_so_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    monkeypatch.setattr(checked, "path", lambda: tmp_path / "cache" / "doctor.json")
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "A100")
    monkeypatch.setattr(checked, "driver", lambda: "570")
    gpu = torch.device("cuda")
    with FakeTensorMode(), caplog.at_level(logging.WARNING, "fastmax"):
        for _ in range(2):
            assert "fastmax doctor" in str(triton.unsupported(call("cuda", backend="auto")))
        assert triton.unsupported(call("cuda", backend="triton")) is None
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        assert "`fastmax doctor` checks them" in caplog.text
        checked.store(gpu, passed=True)
        assert triton.unsupported(call("cuda", backend="auto")) is None
        assert json.loads(checked.path().read_text()) == {
            f"A100, sm_80, driver 570, torch {torch.__version__}, triton 3.7.1": True
        }
        for module, name, other in ((checked, "driver", "580"), (device, "triton_version", (3, 8, 0))):
            with monkeypatch.context() as changed:
                changed.setattr(module, name, lambda found=other: found)
                checked.is_checked.cache_clear()
                assert not checked.is_checked(gpu), name
        checked.store(gpu, passed=False)
        assert not checked.is_checked(gpu)
        assert checked.forget()
        assert not checked.forget()


@pytest.mark.usefixtures("_an_a100")
@pytest.mark.parametrize("content", ["", "[1]", "{"])
def test_a_damaged_result_of_the_doctor_counts_as_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: str
) -> None:
    monkeypatch.setattr(checked, "path", lambda: tmp_path / "doctor.json")
    checked.path().write_text(content)
    assert not checked.is_checked(torch.device("cuda"))


@pytest.mark.usefixtures("_an_a100")
def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = torch.device("cuda")
    assert device.missing(gpu) is None
    monkeypatch.setattr(device, "triton_version", lambda: (3, 6, 0))
    assert device.missing(gpu) is None
    monkeypatch.setattr(device, "architecture", lambda _: "sm_90")
    assert device.missing(gpu) == "on sm_90 it needs triton 3.7.1, and there is 3.6.0"
    monkeypatch.setattr(device, "triton_version", lambda: None)
    assert "not installed" in str(device.missing(gpu))
    assert triton.describe().startswith("missing: triton is not installed")


def test_versions() -> None:
    assert device.numbers("3.7.1") == (3, 7, 1)
    assert device.numbers("3.10.0+git1234") == (3, 10, 0)


def test_asking_for_the_backend_does_not_import_triton() -> None:
    program = (
        "import sys, torch, fastmax; from fastmax import backends\n"
        "x = torch.randn(1, 1, 4, 4); fastmax.fastmax_attention(x, x, x)\n"
        "backends.load('triton'); print('triton' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_the_line_to_report() -> None:
    line = gpu_report.line(12, 1)
    assert line.startswith("GPU run: fastmax ")
    assert "| no GPU |" in line
    assert line.endswith("12 passed | 1 failed")


def test_an_error_before_a_test_is_a_failure() -> None:
    reports = {"passed": ["a", "b"], "failed": ["c"], "error": ["d", "e"], "skipped": ["f"]}
    assert gpu_report.counts(lambda outcome: reports.get(outcome, [])) == (2, 3)


def test_the_mode_that_forbids_waiting_is_left_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch warns that it is a prototype, which is an error in the tests."""
    modes = []

    def set_mode(mode: str) -> None:
        modes.append(mode)
        if mode != "default":
            warnings.warn("Synchronization debug mode is a prototype feature", UserWarning, stacklevel=2)

    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", set_mode)
    with no_waiting():
        assert modes == ["error"]
    assert modes == ["error", "default"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_run_in_which_nothing_ran_fails() -> None:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-m",
        "gpu",
        "--gpu-report",
        "-p",
        "no:cacheprovider",
        "tests/backends/test_gpu.py",
    ]
    done = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stdout.endswith("| 0 passed | 0 failed | no test ran on a GPU\n")
