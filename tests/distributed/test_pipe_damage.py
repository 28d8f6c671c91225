"""Peers that send what is no message: an error each time, no crash, no hang, no memory.

``TENSORDICT_FUZZ=1000`` sends more damaged messages than a run of all tests does.
"""

import asyncio
import logging
import os
import random
import socket
import struct
import tracemalloc

import pytest
import torch

from tensordict import NonTensorStack, TensorClass, TensorDict, lazy_stack
from tensordict._ucxx import TensorDictPipe, TensorDictServer
from tensordict.distributed import wire
from tensordict.distributed.endpoints import Endpoint
from tensordict.distributed.wire import WireError

COUNT = int(os.environ.get("TENSORDICT_FUZZ", "120"))
LIMIT_S = 60
ERRORS = (WireError, EOFError, OSError)


class Point(TensorClass):
    x: torch.Tensor
    label: str = "origin"


def collections():
    return [
        TensorDict(
            a=torch.arange(6).reshape(3, 2),
            n=TensorDict(b=torch.ones(3, 4, dtype=torch.bfloat16), batch_size=[3, 4]),
            s=NonTensorStack("x", "y", "z"),
            t="text",
            c=1j,
            batch_size=[3],
        ),
        lazy_stack([TensorDict(x=torch.ones(i + 1)) for i in range(3)]),
        Point(x=torch.ones(2), batch_size=[2]),
        TensorDict(batch_size=[2]),
    ]


def run(coroutine):
    async def limited():
        async with asyncio.timeout(LIMIT_S):
            return await coroutine

    return asyncio.run(limited())


class Recorder(Endpoint):
    """An endpoint that only notes what is sent."""

    def __init__(self):
        self.content = b""

    async def send(self, pieces):
        self.content += b"".join(map(bytes, pieces))

    def close(self):
        pass


async def recorded(td, count=2):
    """The bytes of messages: the second says nothing of the structure."""
    found = Recorder()
    with TensorDictPipe(found) as pipe:
        for _ in range(count):
            await pipe.asend(td)
    return found.content


async def received(content, ends=True, count=3, **options):
    """Return what a pipe says of bytes that a peer sends before it hangs up."""
    one, other = socket.socketpair()
    pipe = TensorDictPipe(other, **options)
    one.setblocking(False)

    async def send():
        try:
            await asyncio.get_running_loop().sock_sendall(one, content)
        except OSError:
            return
        if ends:
            one.close()

    with one, pipe:
        task = asyncio.ensure_future(send())
        found = []
        try:
            while len(found) < count:
                found.append(await pipe.arecv())  # noqa: PERF401 (what came is kept)
        except ERRORS as error:
            assert pipe.closed
            return found, error
        finally:
            await task
        return found, None


def damaged(content, rng):
    """Bytes that differ from those of a message in one of several ways."""
    content = bytearray(content)
    way = rng.randrange(7)
    if way == 0:
        del content[rng.randrange(len(content)) :]
    elif way == 1:
        for _ in range(rng.randrange(1, 9)):
            content[rng.randrange(len(content))] = rng.randrange(256)
    elif way == 2:
        at = rng.randrange(len(content))
        content[at:at] = rng.randbytes(rng.randrange(1, 64))
    elif way == 3:
        start = rng.randrange(len(content))
        del content[start : start + rng.randrange(1, 64)]
    elif way == 4:
        # A number of eight bytes somewhere in the head, or in front of the description.
        at = rng.choice([8, 16, wire.HEAD_BYTES])
        number = rng.choice([1 << 60, (1 << 64) - 1, 1 << 31, 0, 1])
        struct.pack_into("<Q", content, min(at, len(content) - 8), number)
    elif way == 5:
        content = bytearray(rng.randbytes(rng.randrange(1, 2 * len(content))))
    else:
        # A digit, quote or bracket of the description.
        text = [i for i, byte in enumerate(content) if chr(byte) in '0123456789"[]{},:']
        content[rng.choice(text)] = ord(rng.choice('0123456789"[]{},:'))
    return bytes(content)


def touch(td):
    """Read all of a collection that was made of damaged bytes."""
    for leaf in td.values(True, True) if not hasattr(td, "tensordicts") else ():
        leaf.clone()
    repr(td)


def test_damaged_messages_are_errors():
    rng = random.Random(0)
    sources = collections()

    async def main():
        messages = [await recorded(td) for td in sources]
        refused = 0
        for number in range(COUNT):
            content = damaged(messages[number % len(messages)], rng)
            found, error = await received(content)
            refused += error is not None
            for td in found:
                touch(td)
        return refused

    # A changed byte of a leaf is a value like any other.
    assert run(main()) > COUNT // 2


def test_damaged_messages_to_a_server(caplog):
    rng = random.Random(1)

    async def main():
        messages = [await recorded(td) for td in collections()]
        served = []

        async def handler(pipe):
            try:
                async for td in pipe:
                    touch(td)
            except ERRORS:
                pass
            finally:
                served.append(pipe)

        server = TensorDictServer(0, host="127.0.0.1")
        port = server.port
        task = asyncio.ensure_future(server.serve(handler))
        loop = asyncio.get_running_loop()
        for number in range(COUNT):
            content = messages[number % len(messages)]
            hello = struct.pack("<8sB32s", b"TDpipe\x00\x01", 0, bytes(32))
            content = (
                hello + damaged(content, rng)
                if number % 2
                else damaged(hello + content, rng)
            )
            with socket.socket() as client:
                client.setblocking(False)
                await loop.sock_connect(client, ("127.0.0.1", port))
                try:
                    await loop.sock_sendall(client, content)
                except OSError:
                    continue
        # The server still serves.
        async with await TensorDictPipe.connect("127.0.0.1", port) as pipe:
            await pipe.asend(collections()[0])
        while not served or server._tasks:
            await asyncio.sleep(0.001)
            if all(task.done() for task in server._tasks):
                break
        await server.aclose()
        await task
        return len(served)

    with caplog.at_level(logging.CRITICAL, "tensordict"):
        assert run(main()) >= COUNT // 2
    assert "dropped" not in caplog.text


@pytest.mark.parametrize("at", [8, 16])
def test_a_length_of_2_to_the_60_takes_no_memory(at):
    async def main():
        content = bytearray(await recorded(collections()[0], 1))
        struct.pack_into("<Q", content, at, 1 << 60)
        tracemalloc.start()
        try:
            _, error = await received(bytes(content))
            return error, tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    error, peak = run(main())
    assert isinstance(error, WireError)
    assert str(1 << 60) in str(error)
    assert peak < 8 << 20


def test_a_description_that_does_not_come_takes_no_memory():
    async def main():
        head = wire.Head(1, 200 << 20, 0, b"x" * 16).to_bytes()
        tracemalloc.start()
        try:
            _, error = await received(head + b"{" * 1000)
            return error, tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    error, peak = run(main())
    assert "in the middle of a description" in str(error)
    assert peak < 8 << 20


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "closed the pipe"),
        (b"GET / HTTP/1.1\r\n" + b" " * 100, "GET /"),
        (b"\x80\x04\x95" + bytes(200), "instead of a head"),
        (wire.Head(7, 0, 0).to_bytes(), "kind 7"),
        (wire.Head(2, 0, 8).to_bytes(), "another structure"),
        (wire.Head(1, 4, 0).to_bytes() + b"\0" * 4, "damaged"),
        (wire.Head(1, 10, 0).to_bytes() + b"123", "3 of 10 bytes"),
        (wire.Head(1, 10, 0).to_bytes()[:20], "in the middle of a head"),
    ],
)
def test_what_is_no_message_says_what_it_is(content, message):
    _, error = run(received(content))
    assert message in str(error)


def test_half_a_message_is_an_error_at_any_place():
    async def main():
        content = await recorded(collections()[0], 1)
        for end in range(1, len(content), 37):
            found, error = await received(content[:end])
            assert not found
            assert isinstance(error, WireError), end
            assert "in the middle of" in str(error), end

    run(main())


def test_half_a_message_and_then_nothing_is_an_error():
    async def main():
        content = await recorded(collections()[0], 1)
        for end in (10, 70, len(content) - 3):
            _, error = await received(content[:end], ends=False, timeout=0.05)
            assert isinstance(error, WireError)
            assert "0.05 seconds" in str(error)

    run(main())


def test_leaves_of_another_structure_are_an_error():
    async def main():
        first = await recorded(TensorDict(a=torch.zeros(4)), 1)
        second = await recorded(TensorDict(b=torch.zeros(4)), 2)
        # The second message of another pipe, after the first of this one.
        rest = second[len(await recorded(TensorDict(b=torch.zeros(4)), 1)) :]
        return await received(first + rest)

    found, error = run(main())
    assert len(found) == 1
    assert "another structure" in str(error)


def test_limits_are_parameters():
    async def main():
        content = await recorded(TensorDict(a=torch.zeros(1000)), 1)
        return await received(content, max_bytes=3999)

    _, error = run(main())
    assert "3999" in str(error)


def test_a_waiting_receive_can_be_cancelled_and_the_pipe_goes_on():
    async def main():
        one, other = map(TensorDictPipe, socket.socketpair())
        async with one, other:
            waiting = asyncio.ensure_future(other.arecv())
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            await one.asend(TensorDict(a=torch.ones(1)))
            assert (await other.arecv())["a"] == 1

    run(main())
