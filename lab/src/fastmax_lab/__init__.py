"""The paper reproduced: data, baselines, the Long Range Arena, experiments, benchmarks and their report."""

__version__ = "0.1.0"
