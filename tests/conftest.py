"""What every test has: one thread, a fixed seed, reproducible properties, and the backends to run on."""

import pytest
import torch
from hypothesis import HealthCheck, settings

from tests import gpu_report

# Too slow once coverage traces it is no reason to fail; the same examples every time are.
settings.register_profile(
    "fastmax",
    deadline=None,
    derandomize=True,
    print_blob=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
settings.load_profile("fastmax")
torch.set_num_threads(1)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--interpreted", action="store_true", help="the whole conformance suite in Triton's interpreter: slow"
    )
    parser.addoption("--gpu-report", action="store_true", help="end with a line that says what ran on which GPU")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if config.getoption("--gpu-report"):
        counts = [len(terminalreporter.getreports(outcome)) for outcome in ("passed", "failed")]
        terminalreporter.write_line(gpu_report.line(*counts))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What the interpreter would take too long for is left out, unless it is asked for."""
    if config.getoption("--interpreted"):
        return
    slow = [item for item in items if item.get_closest_marker("interpreted")]
    items[:] = [item for item in items if item not in slow]
    config.hook.pytest_deselected(items=slow)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(params=["chunked", "auto"])
def backend(request: pytest.FixtureRequest) -> str:
    """Plain PyTorch, and what users get: the fastest backend that can run the call."""
    return str(request.param)
