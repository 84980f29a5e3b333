"""`fastmax-lab bench` and `fastmax-lab tune`: a module of `bench` measures, that of the same name in `report` draws."""

from dataclasses import asdict, dataclass, fields
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal

from fastmax_lab._progress import waiting
from fastmax_lab._settings import Range
from fastmax_lab.bench.selection import Selection
from fastmax_lab.commands.paths import NEW_FILE
from fastmax_lab.commands.shared import Command, Printing, Threads, check_device


@dataclass(frozen=True, kw_only=True)
class Benchmark(Threads, Printing, Command):
    """A benchmark, named as its class."""

    out: Annotated[Path | None, NEW_FILE] = None
    """Add the measurements to this file, a line of JSON each."""
    quick: bool = False
    """Fewer sizes and rounds."""

    def run(self) -> None:
        self.limit_threads()
        self.measure(type(self).__name__.removesuffix("Benchmark").lower(), self.quick)

    def measure(self, name: str, *given: Any) -> None:
        """Run the benchmark module and show what it recorded."""
        with waiting("loading"):
            bench = import_module(f"fastmax_lab.bench.{name}")
            from fastmax_lab.measurements import Recorder  # imports torch, which --help does not need
        record = Recorder(f"bench {name}", self.out)
        bench.run(record, *given)
        text = import_module(f"fastmax_lab.report.{name}").summary
        self.show([asdict(one) for one in record.made], lambda _: text(record.made))


class Core(Benchmark):
    """Measure the growth of time and memory, and the paper's literal form."""


class Decode(Benchmark):
    """Measure the time per token with a state, against softmax attention over a cache."""


class Generate(Benchmark):
    """Measure generation by a model of transformers: time and memory per token, against a cache of keys and values."""


class DropoutBenchmark(Benchmark):
    """Measure the cost of each dropout mode."""


class DecayBenchmark(Benchmark):
    """Measure the cost of forgetting by the strength of decays, against the same call without."""


class ValuesBenchmark(Benchmark):
    """Measure a call by the values of its inputs: tiny, huge, constant, equal or sparse ones."""


@dataclass(frozen=True, kw_only=True)
class Narrow(Benchmark):
    """Measure queries and keys of fewer channels than values, against as many and softmax."""

    tokens: Annotated[tuple[int, ...], Range(at_least=1, at_most=1 << 22)] = (4096, 16384)
    """Lengths of the sequence."""

    def run(self) -> None:
        self.limit_threads()
        self.measure("narrow", self.quick, self.tokens)


class Distributed(Benchmark):
    """Measure a sequence over several processes: bytes, time, and the computed cost on many machines."""


class Long(Benchmark):
    """Measure one head over a million tokens: time, memory, precision."""


class Lra(Benchmark):
    """Measure training steps per second and memory of every attention of the Long Range Arena."""


class GpuEstimate(Benchmark):
    """Estimate the time of plain PyTorch on GPUs from counted launches, bytes and flops. Nothing runs on a GPU."""

    def run(self) -> None:
        self.measure("gpu_estimate", self.quick)


@dataclass(frozen=True, kw_only=True)
class Kernel(Selection, Benchmark):
    """Measure the native kernel against sgemm, softmax attention and plain PyTorch.

    Example: fastmax-lab bench kernel --tokens 1000 --head-dim 64 --out kernel.json
    """

    def run(self) -> None:
        self.limit_threads()
        only = Selection(**{field.name: getattr(self, field.name) for field in fields(Selection)})
        if self.device == "cuda":
            check_device(self.device)
            self._measure_gpu(only)
        else:
            self.measure("kernel", self.quick, only)

    def _measure_gpu(self, only: Selection) -> None:
        from fastmax_lab.bench import gpu

        cells = gpu.cells(
            only.tokens or ((4096, 16384) if self.quick else (1024, 4096, 16384, 65536)),
            only.head_dim or ((64,) if self.quick else (32, 64, 128)),
            ((2,) if self.quick else (1, 2)) if only.order is None else (only.order,),
            ("bfloat16",) if only.dtype is None else (only.dtype,),
        )
        self.measure("gpu", list(cells))


@dataclass(frozen=True, kw_only=True)
class Tune(Command):
    """Look for tiles of the Triton kernels that are faster on this GPU, to report them."""

    head_dim: Annotated[int, Range(at_least=1, at_most=128)] = 64
    """Channels of a head."""
    dtype: Literal["bfloat16", "float16", "float32"] = "bfloat16"
    """The dtype of queries, keys and values."""
    tokens: Annotated[int, Range(at_least=1024, at_most=1 << 20)] = 16384
    """Length of the sequence."""
    heads: Annotated[int, Range(at_least=1, at_most=1024)] = 16
    """Number of heads."""

    def run(self) -> None:
        from fastmax_lab.bench import tune

        print(tune.run(head_dim=self.head_dim, dtype=self.dtype, tokens=self.tokens, heads=self.heads))
