"""What every test has: one thread, a fixed seed, reproducible properties, and the backends to run on."""

import signal
from collections.abc import Iterator

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
        "--interpreted", action="store_true", help="the whole suite of the Triton backend in Triton's interpreter"
    )
    parser.addoption("--slow", action="store_true", help="the slow tests, too")
    parser.addoption("--wheel", help="the wheel that `make package` has built: the tests of it")
    parser.addoption("--gpu-report", action="store_true", help="end with a line that says what ran on which GPU")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail a GPU run in which no test passed: it has shown nothing."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if session.config.getoption("--gpu-report", default=False) and reporter is not None:
        passed, _ = gpu_report.counts(reporter.getreports)
        if passed == 0 and session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_unconfigure(config: pytest.Config) -> None:
    """Write the line of the GPU report last, after all that pytest prints."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if config.getoption("--gpu-report", default=False) and reporter is not None:
        reporter.write_line(gpu_report.line(*gpu_report.counts(reporter.getreports)))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the tests that need an option which was not given."""
    markers = {"interpreted": "--interpreted", "packaged": "--wheel", "slow": "--slow"}
    out = [marker for marker, option in markers.items() if not config.getoption(option)]
    left = [item for item in items if any(item.get_closest_marker(marker) for marker in out)]
    items[:] = [item for item in items if item not in left]
    config.hook.pytest_deselected(items=left)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Let processes that a test starts obey Ctrl-C: those of a job in the background are born ignoring it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(params=["chunked", "auto"])
def backend(request: pytest.FixtureRequest) -> str:
    """Return plain PyTorch and "auto", the fastest backend that can run the call."""
    return str(request.param)
