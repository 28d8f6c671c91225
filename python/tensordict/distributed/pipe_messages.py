"""One message of a pipe: a head, a description, and the leaves, sent without a copy."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch

from tensordict.distributed import wire
from tensordict.distributed.endpoints import Endpoint, MessageEndpoint

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tensordict.distributed.wire import Head

__all__ = ["device_of", "place_of", "receive_bytes", "receive_into", "send_message"]

PIECE_BYTES = 1 << 20
"""The number of bytes of a description to receive before memory for more is allocated."""


async def send_message(
    endpoint: Endpoint, head: Head, description: bytes, message: wire.Message
) -> None:
    """Send a message."""
    if isinstance(endpoint, MessageEndpoint):
        # The receiver makes one call for each of these three messages.
        await endpoint.send([head.to_bytes()])
        await endpoint.send([description])
        await endpoint.send([wire.content_of(wire.pack(message))])
        return
    await endpoint.send(_pieces(head, description, message))


def _pieces(
    head: Head, description: bytes, message: wire.Message
) -> Iterator[bytes | memoryview]:
    """Yield the memory to send: small leaves packed together, large leaves as they are."""
    yield head.to_bytes()
    yield description
    for run in wire.runs(message.parts, message.num_bytes):
        length = run.stop - run.start
        if len(run.parts) == 1 and run.parts[0][0] == run.start:
            part = run.parts[0][1]
            if part.numel() * part.element_size() == length:
                yield wire.content_of(part)
                continue
        packed = torch.empty(length, dtype=torch.uint8)
        wire.fill(packed, run.start, run.parts)
        yield wire.content_of(packed)


async def receive_bytes(endpoint: Endpoint, length: int) -> bytes:
    """Receive ``length`` bytes, and allocate memory only as they arrive."""
    if isinstance(endpoint, MessageEndpoint):
        message = bytearray(length)
        await endpoint.receive(memoryview(message), "a description")
        return bytes(message)
    content = bytearray()
    while len(content) < length:
        piece = bytearray(min(PIECE_BYTES, length - len(content)))
        await endpoint.receive(memoryview(piece), "a description")
        content += piece
    return bytes(content)


async def receive_into(endpoint: Endpoint, buffer: torch.Tensor) -> None:
    """Receive the leaves of a message into their buffer."""
    if not len(buffer):
        return
    on_cpu = (
        buffer
        if buffer.device.type == "cpu"
        else torch.empty_like(buffer, device="cpu")
    )
    array: Any = on_cpu.numpy()
    await endpoint.receive(memoryview(array), "leaves")
    if on_cpu is not buffer:
        buffer.copy_(on_cpu)


def device_of(message: wire.Message) -> str:
    """Return the name of the device of the leaves to send."""
    return str(message.parts[0][1].device) if message.parts else "cpu"


def place_of(device: torch.device | None, sent: bytes) -> torch.device | None:
    """Return the device for received leaves, ``None`` for the CPU.

    The device is ``device``, or the CUDA device that the peer names, if this process has it.
    """
    if device is not None:
        return torch.device(device)
    name = sent.rstrip(b"\0").decode("ascii", "replace")
    if not name.startswith("cuda") or not torch.cuda.is_available():
        return None
    with contextlib.suppress(RuntimeError):
        place = torch.device(name)
        if (place.index or 0) < torch.cuda.device_count():
            return place
    return None
