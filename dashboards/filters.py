"""Wireshark display filters for what a row or a group of rows is about."""

from collections.abc import Collection
from typing import Any

from amqpscope import spec

PORTS = 4
"""Most clients whose ports a filter names; with more it names none."""


def of_method(method: str, ports: Collection[int | None] = ()) -> str:
    """Return the display filter for a method of AMQP 0-9-1, of the connections of some clients' ports."""
    ids = spec.load().method(method)
    return of_ports(ports, f"amqp.method.class == {ids.class_id} && amqp.method.method == {ids.id}")


def of_packet(packet: int | None, port: int | None = None) -> str:
    """Return the display filter for one packet; empty where it is not known."""
    return "" if packet is None else of_ports([port], f"frame.number == {packet}")


def of_ports(ports: Collection[int | None], condition: str) -> str:
    """Return a display filter for what holds on the connections of these clients' ports."""
    known = sorted({int(port) for port in ports if port is not None})
    if not known or len(known) > PORTS:
        return condition
    listed = ", ".join(str(port) for port in known)
    return f"tcp.port == {listed} && {condition}" if len(known) == 1 else f"tcp.port in {{{listed}}} && {condition}"


def of_ends(row: dict[str, Any], port: int | None) -> list[str]:
    """Return filters for the packets at both ends: one, or one for each file when the ends are in two.

    Packet numbers hold within one file; the client's port keeps the other packets of a merged file out.
    """
    packets: dict[str | None, set[int]] = {}
    for end in ("begin", "end"):
        if row[f"{end}_packet"] is not None:
            packets.setdefault(row[f"{end}_capture"], set()).add(int(row[f"{end}_packet"]))
    filters = []
    for numbers in packets.values():
        listed = ", ".join(str(n) for n in sorted(numbers))
        frames = f"frame.number in {{{listed}}}" if len(numbers) > 1 else f"frame.number == {listed}"
        filters.append(of_ports([port], frames))
    return filters
