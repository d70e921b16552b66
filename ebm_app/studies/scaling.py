"""What exchanging gradients costs among several devices, estimated.

Every device computes a step of T seconds on its own batch, then the gradients of G bytes are
averaged: within each of H hosts of g devices by a ring, each device keeping a share of 1/g of the
sum, among hosts by rings of those shares, and back,

    C = 2 (g - 1) (G / (g b) + l) + 2 (H - 1) (G / (g H B) + L),

with b, l the bandwidth (bytes a second, of one device in one direction) and the latency of the
links within a host, B, L of those between hosts. Nothing of it is taken to overlap with the
backward pass, as it does in reality, so that T / (T + C) is a lower bound of the efficiency.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Link:
    """A connection: bytes a second of one device in one direction, and seconds a message."""

    bandwidth: float
    latency: float


#: NVLink of the fourth generation, and a network card of 400 gigabits a second for each device
WITHIN, BETWEEN = Link(450e9, 5e-6), Link(50e9, 2e-5)


def exchange_seconds(
    num_bytes: float, per_host: int, hosts: int, within: Link = WITHIN, between: Link = BETWEEN
) -> float:
    """C of the module's docstring."""
    inside = 2 * (per_host - 1) * (num_bytes / (per_host * within.bandwidth) + within.latency)
    share = num_bytes / (per_host * hosts * between.bandwidth)
    return inside + 2 * (hosts - 1) * (share + between.latency)


def efficiency(step_seconds: float, exchange: float) -> float:
    """The share of perfect scaling that is left: T / (T + C)."""
    return step_seconds / (step_seconds + exchange)
