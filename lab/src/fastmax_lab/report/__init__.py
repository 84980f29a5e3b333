"""Draws what the benchmarks measured; never measures."""
