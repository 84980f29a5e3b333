"""The cost model of a sequence over many ranks: seconds of arithmetic and of exchange per layer, against ring attention.

Everything is computed from shapes and stated rates; nothing is measured here. Per head and for the forward pass:

    Fastmax     arithmetic (Nq + 2 Nk) F (Dv + 1) multiply-adds of a shard: the sum for the exchange, then the causal op
                exchange   (W - 1) or 1 + ceil(log2(W - 1)) states of F (Dv + 1) numbers received, whatever N
    ring        arithmetic N^2 / 2 (D + Dv) multiply-adds over all ranks
                exchange   (W - 1) N / W (D + Dv) numbers received: all keys and values but one's own
"""

from dataclasses import asdict, dataclass
from typing import Any

from fastmax.distributed.scan import gathers, rounds
from fastmax.features import feature_count


@dataclass(frozen=True)
class RingLayer:
    """The shape of one attention layer and the order of its polynomial."""

    heads: int = 32
    key_heads: int = 8
    head_dim: int = 64
    order: int = 2

    @property
    def features(self) -> int:
        return feature_count(self.head_dim, self.order)

    @property
    def state_bytes(self) -> int:
        """Return the bytes of all key heads, in fp32."""
        return 4 * self.key_heads * self.features * (self.head_dim + 1)


@dataclass(frozen=True)
class Machine:
    """The speed of one rank: multiply-adds and bytes per second, and seconds until a message arrives."""

    name: str
    rate: float
    bandwidth: float
    latency: float


MACHINES = (
    Machine("400 Gbit/s network, 1e14 multiply-adds/s", 1e14, 50e9, 10e-6),
    Machine("10 Gbit/s network, 1e11 multiply-adds/s", 1e11, 1.25e9, 100e-6),
)
"""Round numbers for an accelerator and for a server of a few cores, to be replaced by one's own."""

VALUE_BYTES = 2
"""Bytes of a number in a key or value that a ring sends: bf16."""


def received(layer: RingLayer, world: int) -> int:
    """Return the bytes that a rank receives in a forward pass of causal Fastmax."""
    if world == 1:
        return 0
    messages = world - 1 if gathers(world, layer.state_bytes) else rounds(world)
    return messages * layer.state_bytes


def ring_received(layer: RingLayer, tokens: int, world: int) -> int:
    """Return the bytes that a rank receives in a forward pass of ring attention: all other keys and values."""
    return (world - 1) * (tokens // world) * 2 * layer.key_heads * layer.head_dim * VALUE_BYTES


def crossover(layer: RingLayer, world: int) -> int:
    """Return the number of tokens, over all ranks, from which Fastmax receives fewer bytes than a ring."""
    per_token = 2 * layer.key_heads * layer.head_dim * VALUE_BYTES * (world - 1) / world
    return round(received(layer, world) / per_token)


def seconds(layer: RingLayer, machine: Machine, tokens: int, world: int) -> dict[str, float]:
    """Return the seconds of one forward pass of one causal layer, on each rank."""
    shard, d = tokens / world, layer.head_dim
    state = layer.features * (d + 1)
    work = shard * state * (layer.heads + (2 if world > 1 else 1) * layer.key_heads)
    messages = 0 if world == 1 else 1 if gathers(world, layer.state_bytes) else rounds(world)
    return {
        "compute": work / machine.rate,
        "exchange": received(layer, world) / machine.bandwidth + messages * machine.latency,
        "ring compute": layer.heads * tokens * tokens / 2 * 2 * d / world / machine.rate,
        "ring exchange": ring_received(layer, tokens, world) / machine.bandwidth + (world - 1) * machine.latency,
    }


def model(tokens: tuple[int, ...], worlds: tuple[int, ...]) -> dict[str, Any]:
    """Return the tables of the page."""
    layer = RingLayer()
    cells = [
        {"machine": machine.name, "tokens": n, "world": world, "seconds": seconds(layer, machine, n, world)}
        for machine in MACHINES
        for n in tokens
        for world in worlds
    ]
    crossings = [
        {"world": world, "received": received(layer, world), "crossover": crossover(layer, world)}
        for world in worlds
        if world > 1
    ]
    return {
        "layer": asdict(layer),
        "state_bytes": layer.state_bytes,
        "machines": [asdict(machine) for machine in MACHINES],
        "cells": cells,
        "crossings": crossings,
    }
