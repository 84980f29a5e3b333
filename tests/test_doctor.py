"""`fastmax doctor`: what it checks, what it keeps, what it reports. With small calls; on the CPU."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fastmax import doctor
from fastmax.__main__ import main
from fastmax.backends import batched
from fastmax.backends.triton import checked

CPU = torch.device("cpu")
SMALL = tuple(case._replace(tokens=120) for case in doctor.CASES)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(doctor, "CASES", SMALL)
    monkeypatch.setattr(doctor, "TIMINGS_SECONDS", 0.05)
    monkeypatch.setattr(doctor.checks, "__defaults__", (SMALL,))
    monkeypatch.setattr(checked, "path", lambda: tmp_path / "cache" / "doctor.json")


def test_all_backends_pass_on_the_cpu() -> None:
    found = list(doctor.checks(CPU))
    assert {one.backend for one in found} >= {"batched", "chunked"}
    assert all(one.passed for one in found), [one for one in found if not one.passed]
    assert {one.case for one in found} == {case.name for case in SMALL}


def wrong(*_: Any) -> Any:
    raise RuntimeError("a compiler has\nfailed")


@pytest.mark.parametrize(("broken", "said"), [(wrong, "RuntimeError: a compiler has failed"), (None, "error")])
def test_a_backend_that_is_wrong_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], broken: Callable[..., Any] | None, said: str
) -> None:
    whole = batched.forward

    def scaled(*call: Any) -> Any:
        o, g, state = whole(*call)
        return o * 1.5, g, state

    monkeypatch.setattr(batched, "forward", broken or scaled)
    assert main(["doctor"]) == 1
    printed = capsys.readouterr().out
    assert "FAILED" in printed
    assert said in printed
    assert "batched: 0 of 7 passed" in printed
    assert "No Triton kernels run on this device." in printed


def test_no_time_is_no_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "CHECKS_SECONDS", 0.0)
    found = list(doctor.checks(CPU))
    assert any("for lack of time" in one.note and not one.passed for one in found)


@pytest.mark.parametrize(("errors", "kept"), [((1e-3, 1e-3), True), ((1e-3, 0.5), False), ((1e-3, None), None)])
def test_what_is_kept_of_triton(
    monkeypatch: pytest.MonkeyPatch, errors: tuple[float | None, ...], kept: bool | None
) -> None:
    monkeypatch.setattr(checked, "key", str)
    found = [doctor.Check("triton", "case", error, error is not None and error < 1e-2) for error in errors]
    said = doctor._keep(CPU, found)
    assert checked._read() == ({} if kept is None else {"cpu": kept})
    assert ("from now on" in said) == (kept is True)


def test_reset(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--reset"]) == 0
    checked.path().parent.mkdir()
    checked.path().write_text("{}")
    assert main(["doctor", "--reset"]) == 0
    assert capsys.readouterr().out.splitlines() == ["there was nothing to forget", "forgotten"]
    assert not checked.path().exists()
