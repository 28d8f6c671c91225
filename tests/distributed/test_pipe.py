"""Pipes between two ends: what goes through, secrets, closed ends, and clients of a server."""

import asyncio
import logging
import socket
import subprocess
import sys

import pytest
import torch

from separate_process import run_freshly
from tensordict import (
    NonTensorStack,
    TensorClass,
    TensorDict,
    TensorDictParams,
    lazy_stack,
)
from tensordict._ucxx import (
    TensorDictPipe,
    TensorDictServer,
    recv_tensordict,
    send_tensordict,
)
from tensordict.distributed import endpoints
from tensordict.distributed.wire import WireError

LIMIT_S = 60


def run(coroutine):
    async def limited():
        async with asyncio.timeout(LIMIT_S):
            return await coroutine

    return asyncio.run(limited())


def pair(**options):
    one, other = socket.socketpair()
    return TensorDictPipe(one, **options), TensorDictPipe(other, **options)


async def through(td, one, other, into=None, **options):
    """Send and receive at the same time: large collections do not fit the buffers."""
    _, found = await asyncio.gather(one.asend(td), other.arecv(into, **options))
    return found


class Point(TensorClass):
    x: torch.Tensor
    label: str = "origin"


def plain():
    return TensorDict(
        a=torch.arange(6).reshape(3, 2),
        n=TensorDict(b=torch.ones(3, 4, dtype=torch.bfloat16), batch_size=[3, 4]),
        s=NonTensorStack("x", "y", "z"),
        t="text",
        batch_size=[3],
        names=["rows"],
    )


KINDS = {
    "plain": plain,
    "empty": lambda: TensorDict(batch_size=[2]),
    "no_elements": lambda: TensorDict(a=torch.zeros(0, 3)),
    "consolidated": lambda: plain().consolidate(),
    "lazy": lambda: lazy_stack([TensorDict(x=torch.ones(i + 1)) for i in range(3)]),
    "tensorclass": lambda: Point(x=torch.ones(2), batch_size=[2]),
    "params": lambda: TensorDictParams(TensorDict(w=torch.ones(3))),
    "view": lambda: plain()._get_sub_tensordict(slice(1, 3)),
    "transposed": lambda: TensorDict(a=torch.arange(6).reshape(2, 3).t()),
    "large": lambda: TensorDict({str(i): torch.full((1 << 18,), i) for i in range(3)}),
}


def is_same(found, td):
    if hasattr(td, "tensordicts"):
        return all(map(is_same, found.tensordicts, td.tensordicts))
    return bool((found.to_tensordict() == td.to_tensordict()).all())


@pytest.mark.parametrize("consolidated", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_sent_is_received(kind, consolidated):
    td = KINDS[kind]()

    async def main():
        one, other = pair(consolidated=consolidated)
        async with one, other:
            return await through(td, one, other)

    found = run(main())
    assert found.batch_size == td.batch_size
    assert found.names == td.names
    assert is_same(found, td)
    if kind == "tensorclass":
        assert isinstance(found, Point)
    if kind == "plain":
        assert found["t"] == "text"
        assert found["s"] == ["x", "y", "z"]


def test_the_same_structure_is_received_in_place():
    async def main():
        one, other = pair()
        async with one, other:
            first = await through(plain(), one, other)
            leaf = first["a"]
            second = await through(plain() + 1, one, other)
            assert second is first
            assert torch.equal(leaf, plain()["a"] + 1)
            third = await through(plain().select("a"), one, other)
            assert third is not first
            assert torch.equal(leaf, plain()["a"] + 1)

    run(main())


def test_without_consolidated_each_is_a_new_one():
    async def main():
        one, other = pair(consolidated=False)
        async with one, other:
            first = await through(plain(), one, other)
            assert await through(plain() + 1, one, other) is not first
            assert torch.equal(first["a"], plain()["a"])

    run(main())


def test_a_collection_is_received_into_one_of_its_structure():
    async def main():
        one, other = pair()
        async with one, other:
            mine = (plain() * 0).consolidate()
            assert await through(plain(), one, other, mine) is mine
            assert torch.equal(mine["a"], plain()["a"])
            different = TensorDict(a=torch.zeros(2)).consolidate()
            found = await through(plain() + 1, one, other, different)
            assert found is not different
            assert different["a"].sum() == 0

    run(main())


def test_methods_of_collections():
    async def main():
        one, other = pair()
        async with one, other:
            _, found = await asyncio.gather(plain().asend(one), plain().arecv(other))
            assert torch.equal(found["a"], plain()["a"])
            found = await through(plain(), one, other, device="cpu")
            assert found["a"].device == torch.device("cpu")

    run(main())


def test_without_an_event_loop():
    one, other = pair()
    with one, other:
        one.send(plain())
        one.send(plain() + 1)
        assert torch.equal(other.recv()["a"], plain()["a"])
        assert torch.equal(other.recv()["a"], plain()["a"] + 1)
    assert one.closed
    with pytest.raises(RuntimeError, match="closed"):
        one.send(plain())

    async def main():
        pipe, _ = pair()
        with pipe, pytest.raises(RuntimeError, match=r"await pipe\.asend"):
            pipe.send(plain())

    run(main())


def test_what_cannot_be_sent_is_an_error_and_the_pipe_goes_on():
    async def main():
        one, other = pair()
        async with one, other:
            with pytest.raises(TypeError, match="'f'"):
                await one.asend(TensorDict(f=lambda: None))
            assert torch.equal((await through(plain(), one, other))["a"], plain()["a"])

    run(main())


def test_iterating_ends_where_the_peer_closes():
    async def main():
        one, other = pair()
        async with other:
            for number in range(3):
                await one.asend(TensorDict(a=torch.tensor(number)))
            await one.aclose()
            assert [int(td["a"]) async for td in other] == [0, 1, 2]
            assert other.closed
            with pytest.raises(RuntimeError, match="closed"):
                await other.arecv()

    run(main())


def test_functions_for_one_message():
    async def main():
        one, other = socket.socketpair()
        with one, other:
            for value in (plain(), plain() + 1):
                await send_tensordict(one, value)
                found = await recv_tensordict(other)
                assert torch.equal(found["a"], value["a"])
            mine = (plain() * 0).consolidate()
            await send_tensordict(one, plain())
            assert await recv_tensordict(other, mine) is mine
            await send_tensordict(one, plain())
            assert await recv_tensordict(other, mine, consolidated=False) is not mine
            await send_tensordict(one, TensorDict(a=torch.zeros(1000)))
            with pytest.raises(WireError, match="more than the 100"):
                await recv_tensordict(other, max_bytes=100)

    run(main())


def test_what_is_no_endpoint_is_refused():
    with pytest.raises(TypeError, match="socket"):
        TensorDictPipe(3)


# Servers ---------------------------------------------------------------------------------


async def echo(pipe):
    async for td in pipe:
        await pipe.asend(td + 1)


async def serving(client, handler=echo, **options):
    """Run ``client(port)`` while a server runs."""
    async with TensorDictServer(0, host="127.0.0.1", **options) as server:
        task = asyncio.ensure_future(server.serve(handler))
        try:
            return await client(server.port)
        finally:
            await server.aclose()
            await task


def test_a_server_has_many_clients():
    async def ask(port, number):
        async with await TensorDictPipe.connect("127.0.0.1", port) as pipe:
            for step in range(3):
                found = await through(TensorDict(a=torch.tensor(number)), pipe, pipe)
                assert int(found["a"]) == number + 1, step

    async def client(port):
        await asyncio.gather(*(ask(port, number) for number in range(8)))

    run(serving(client))


def test_a_shared_secret():
    async def client(port):
        for key in ("secret", b"secret"):
            async with await TensorDictPipe.connect(
                "127.0.0.1", port, authkey=key
            ) as pipe:
                await through(plain().select("a"), pipe, pipe)

    run(serving(client, authkey="secret"))


@pytest.mark.parametrize(
    ("listens", "connects", "message"),
    [
        ("secret", "other", "another shared secret"),
        ("secret", None, "pass the peer's authkey="),
        (None, "secret", "was given no shared secret"),
    ],
)
def test_peers_without_the_secret_are_refused_and_logged(
    listens, connects, message, caplog
):
    async def client(port):
        with pytest.raises(WireError, match=message):
            await TensorDictPipe.connect("127.0.0.1", port, authkey=connects)
        # A client that knows the key is served.
        async with await TensorDictPipe.connect(
            "127.0.0.1", port, authkey=listens
        ) as pipe:
            await through(plain().select("a"), pipe, pipe)

    with caplog.at_level(logging.WARNING, "tensordict"):
        run(serving(client, authkey=listens))
    assert "127.0.0.1" in caplog.text
    assert "refused" in caplog.text


def test_other_programs_are_refused_and_hold_nobody_up(caplog, monkeypatch):
    async def client(port):
        silent = socket.create_connection(("127.0.0.1", port))
        other = socket.create_connection(("127.0.0.1", port))
        with silent, other:
            other.sendall(b"GET / HTTP/1.1\r\nHost: example.org\r\n\r\n" + b" " * 100)
            async with await TensorDictPipe.connect("127.0.0.1", port) as pipe:
                await through(plain().select("a"), pipe, pipe)
            loop = asyncio.get_running_loop()
            for each in (silent, other):
                each.setblocking(False)
                while True:
                    # The hello of the server, then the end, or a reset.
                    try:
                        if not await loop.sock_recv(each, 1000):
                            break
                    except ConnectionError:
                        break

    monkeypatch.setattr(endpoints, "HANDSHAKE_TIMEOUT_S", 0.5)
    with caplog.at_level(logging.WARNING, "tensordict"):
        run(serving(client))
    assert "GET /" in caplog.text
    assert "has not said hello" in caplog.text


def test_listening_for_one_client():
    async def main():
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        listening = asyncio.ensure_future(
            TensorDictPipe.listen(port, host="127.0.0.1", authkey="k")
        )
        while True:
            try:
                one = await TensorDictPipe.connect("127.0.0.1", port, authkey="k")
                break
            except ConnectionRefusedError:
                await asyncio.sleep(0)
        other = await listening
        async with one, other:
            assert isinstance(other, TensorDictPipe)
            found = await through(plain(), one, other)
            assert torch.equal(found["a"], plain()["a"])
        # Nobody listens any more.
        with pytest.raises(ConnectionRefusedError, match=f"127.0.0.1:{port}"):
            await TensorDictPipe.connect("127.0.0.1", port)

    run(main())


def test_a_port_that_is_taken_is_named():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=f"127.0.0.1:{port}"):
            run(TensorDictPipe.listen(port, host="127.0.0.1"))


def test_a_handler_that_raises_is_logged_and_others_go_on(caplog):
    async def handler(pipe):
        td = await pipe.arecv()
        if "bad" in td.keys():
            msg = "a mistake"
            raise ValueError(msg)
        await pipe.asend(td)

    async def client(port):
        async with await TensorDictPipe.connect("127.0.0.1", port) as pipe:
            await pipe.asend(TensorDict(bad=torch.ones(1)))
            with pytest.raises((EOFError, OSError, WireError)):
                await pipe.arecv()
        async with await TensorDictPipe.connect("127.0.0.1", port) as pipe:
            assert (await through(plain(), pipe, pipe))["t"] == "text"

    run(serving(client, handler))
    assert "a mistake" in caplog.text


def test_a_server_can_be_closed_from_its_handler():
    async def main():
        server = TensorDictServer(0, host="127.0.0.1")
        port = server.port

        async def handler(pipe):
            server.close()
            await pipe.asend(await pipe.arecv())

        task = asyncio.ensure_future(server.serve(handler))
        async with await TensorDictPipe.connect("127.0.0.1", port) as pipe:
            found = await through(plain(), pipe, pipe)
            await task
            assert found["t"] == "text"

    run(main())


CLIENT = """
import asyncio, sys, torch
from tensordict import TensorDict
from tensordict._ucxx import TensorDictPipe

async def main():
    pipe = await TensorDictPipe.connect("127.0.0.1", int(sys.argv[1]), authkey="k")
    td = TensorDict({str(i): torch.full((1000, 1000), float(i)) for i in range(5)})
    while True:
        await pipe.asend(td)

asyncio.run(main())
"""


def test_a_process_that_is_killed_ends_the_pipe():
    async def main():
        async with TensorDictServer(0, host="127.0.0.1", authkey="k") as server:
            command = [sys.executable, "-c", CLIENT, str(server.port)]
            process = subprocess.Popen(command)  # noqa: ASYNC220 (it is only started)
            try:
                pipe = await anext(aiter(server))
                found = await pipe.arecv()
                assert found["4"].unique().tolist() == [4.0]
                process.kill()
                with pytest.raises((EOFError, OSError, WireError)):
                    while True:
                        await pipe.arecv()
                assert pipe.closed
            finally:
                process.kill()
                process.wait()

    run(main())


def test_a_pipe_that_is_open_at_the_end_of_a_process_says_nothing():
    program = (
        "import socket, torch; from tensordict import TensorDict; "
        "from tensordict._ucxx import TensorDictPipe; "
        "a, b = map(TensorDictPipe, socket.socketpair()); "
        "TensorDict(x=torch.ones(2)).send(a); print(TensorDict().recv(b)['x'].sum())"
    )
    found = run_freshly(program)
    assert found.stdout == "tensor(2.)\n"
    assert "Exception" not in found.stderr


# UCXX ------------------------------------------------------------------------------------


class FakeEndpoint:
    """An endpoint with the coroutines that those of ucxx have: each message is whole."""

    def __init__(self, sent, received):
        self._sent, self._received = sent, received

    async def send(self, array):
        await self._sent.put(array.tobytes())

    async def recv(self, array):
        content = await self._received.get()
        if content is None or len(content) != len(array):
            msg = "truncated"
            raise RuntimeError(msg)
        array[:] = torch.frombuffer(bytearray(content), dtype=torch.uint8).numpy()

    async def close(self):
        await self._sent.put(None)


@pytest.mark.parametrize("kind", KINDS)
def test_endpoints_of_whole_messages(kind):
    td = KINDS[kind]()

    async def main():
        first, second = asyncio.Queue(), asyncio.Queue()
        one = endpoints.MessageEndpoint(FakeEndpoint(first, second))
        other = endpoints.MessageEndpoint(FakeEndpoint(second, first))
        await asyncio.gather(
            endpoints.greet(one, "k", listens=True),
            endpoints.greet(other, "k", listens=False),
        )
        pipes = TensorDictPipe(one), TensorDictPipe(other)
        found = await through(td, *pipes)
        assert is_same(found, td)
        await through(td, *pipes)
        await pipes[0].aclose()
        with pytest.raises(EOFError):
            await pipes[1].arecv()

    run(main())


def test_ucxx_is_asked_for_where_it_is_not(monkeypatch):
    monkeypatch.setitem(sys.modules, "ucxx", None)
    with pytest.raises((ImportError, ValueError)):
        run(TensorDictPipe.connect("127.0.0.1", 1, transport="ucxx"))
    with pytest.raises(ValueError, match="transport"):
        run(TensorDictPipe.connect("127.0.0.1", 1, transport="carrier pigeon"))


@pytest.mark.parametrize("comes", [True, False])
def test_less_than_is_waited_for_has_come_when_time_is_over(comes):
    """A slow peer is taken from in smaller pieces; one that sends nothing is not."""
    one, other = socket.socketpair()
    endpoint = endpoints.SocketEndpoint(one)
    other.sendall(b"begin")
    content = bytearray(8)

    async def late(*_):
        if comes:
            other.sendall(b"end")
        raise WireError("no byte in time")

    endpoint._wait = late
    if comes:
        assert run(endpoint.receive(memoryview(content), "leaves"))
        assert content == b"beginend"
    else:
        with pytest.raises(WireError, match="no byte in time"):
            run(endpoint.receive(memoryview(content), "leaves"))
    endpoint.close()
    other.close()
