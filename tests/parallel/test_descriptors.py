"""Descriptors that are sent to other processes: no side waits for the other."""

import multiprocessing
import os
from multiprocessing import reduction

import pytest
import torch

from tensordict import TensorDict
from tensordict.data import StreamDataLoader
from tensordict.parallel import WorkerPool
from tensordict.parallel.descriptors import receive_descriptor, send_descriptor


@pytest.fixture
def pipe():
    ours, theirs = multiprocessing.Pipe()
    yield ours, theirs
    ours.close()
    theirs.close()


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"content")
    with open(path, "rb") as opened:
        yield opened


def test_a_descriptor_arrives_among_messages_of_both_directions(pipe, file):
    ours, theirs = pipe
    theirs.send("on its way")
    ours.send("before")
    send_descriptor(ours, file.fileno())  # nobody is there who answers
    ours.send("after")
    file.close()
    assert theirs.recv() == "before"
    with open(receive_descriptor(theirs), "rb") as received:
        assert received.read() == b"content"
        assert not os.get_inheritable(received.fileno())
    assert theirs.recv() == "after"
    assert ours.recv() == "on its way"


def test_a_pipe_that_was_closed_is_the_end(pipe):
    ours, theirs = pipe
    ours.close()
    with pytest.raises(EOFError):
        receive_descriptor(theirs)


def test_a_message_without_a_descriptor_names_the_limit(pipe):
    ours, theirs = pipe
    os.write(ours.fileno(), b"\0")
    with pytest.raises(RuntimeError, match="ulimit -n"):
        receive_descriptor(theirs)


@pytest.fixture
def waits_for_answers(monkeypatch):
    """Make what newer Pythons do, waiting for the receiver, an error."""

    def refuse(*args):
        raise AssertionError("it waits for an answer from Python 3.14 on")

    monkeypatch.setattr(reduction, "send_handle", refuse)


@pytest.mark.usefixtures("waits_for_answers")
def test_a_pool_waits_for_no_answer():
    td = TensorDict(a=torch.arange(6), batch_size=[6])
    with WorkerPool(1, "fork") as pool:
        assert (td.map(lambda row: row + 1, chunksize=3, pool=pool) == td + 1).all()


@pytest.mark.usefixtures("waits_for_answers")
def test_workers_of_streams_wait_for_no_answer():
    loader = StreamDataLoader(
        [0, 10],
        lambda first: iter(torch.arange(first, first + 3)),
        2,
        1,
        multiprocessing_context="fork",
    )
    assert [batch["data"].tolist() for batch in loader] == [[0, 10], [1, 11], [2, 12]]
