"""Non-tensor values that processes share."""

import functools
import multiprocessing
import os
import pickle
import signal
import time

import pytest
import torch

from tensordict import (
    LazyStackedTensorDict,
    NonTensorData,
    NonTensorStack,
    TensorDict,
    lazy_stack,
    tensorclass,
)
from tensordict.tensorclass import MetaData

METHODS = ("fork", "spawn", "forkserver")
PATIENCE_S = 120


def make():
    return TensorDict(
        number=torch.zeros(3),
        text="old",
        column=["a", "b", "c"],
        nested=TensorDict(any=NonTensorData({"k": (1, {2})}), meta=MetaData(7)),
        batch_size=[3],
    )


SHARING = {
    "share_memory_": lambda td, path: td.share_memory_(),
    "memmap": lambda td, path: td.memmap(share_non_tensor=True),
    "memmap_": lambda td, path: td.memmap_(path, share_non_tensor=True),
    "memmap_like": lambda td, path: td.memmap_like(path, share_non_tensor=True),
    "save": lambda td, path: td.save(path, share_non_tensor=True),
}


def values(td):
    return (
        td["text"],
        list(td["column"]),
        td["nested", "any"],
        td["nested", "meta"],
    )


def in_fork(call):
    """Return the answer of a forked process to a call, as text."""
    source, target = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.write(target, repr(call()).encode())
        finally:
            os._exit(0)
    os.close(target)
    with os.fdopen(source) as stream:
        answer = stream.read()
    os.waitpid(pid, 0)
    return answer


# Other processes ------------------------------------------------------------------------


def worker(td, view, connection):
    """Answer with the values, and write what is asked for."""
    while (writes := connection.recv()) is not None:
        for key, value in writes:
            if key == "view":
                view.update_(NonTensorData(value))
            elif isinstance(key, int):
                td[key] = TensorDict(
                    number=torch.ones(()),
                    text=td["text"],
                    column=value,
                    nested=td["nested"],
                )
            else:
                td.set_(key, value)
        connection.send(values(td))


@pytest.mark.parametrize("method", METHODS)
def test_a_write_is_seen_by_all_processes(method):
    context = multiprocessing.get_context(method)
    td = make().share_memory_()
    ours, theirs = context.Pipe()
    arguments = td, td.get("column")[2], theirs
    process = context.Process(target=worker, args=arguments, daemon=True)
    process.start()
    theirs.close()

    def ask(writes=()):
        ours.send(writes)
        assert ours.poll(PATIENCE_S)
        return ours.recv()

    assert ask() == ("old", ["a", "b", "c"], {"k": (1, {2})}, 7)
    # A write of the child, seen here.
    big = "x" * 3_000_000
    seen = ask(
        [
            ("text", big),
            ("column", ["A", ("B",), {3}]),
            ("view", None),
            (("nested", "any"), NonTensorData({5: "five"})),
        ]
    )
    assert seen == (big, ["A", ("B",), None], {5: "five"}, 7)
    assert values(td) == seen
    # Ours, seen there.
    td.set_("text", "")
    td.get("column")[0] = NonTensorData(["ours"])
    assert ask() == ("", [["ours"], ("B",), None], {5: "five"}, 7)
    # Growth: more than the heap began with, many times.
    for number in range(20):
        ask([("text", f"{number}" * 200_000)])
    assert td["text"] == "19" * 200_000
    assert ask([("text", "end")])[1] == [["ours"], ("B",), None]
    ours.send(None)
    process.join(PATIENCE_S)
    assert process.exitcode == 0
    assert td["text"] == "end"


@pytest.mark.parametrize("how", SHARING)
def test_every_way_of_sharing(how, tmp_path):
    td = SHARING[how](make(), tmp_path / "save")
    assert values(td) == ("old", ["a", "b", "c"], {"k": (1, {2})}, 7)
    assert td["number"].tolist() == [0, 0, 0]

    def write():
        td.update_({"text": "new", "column": ["x", "y", "z"]})
        td["nested"].set_("any", {4})
        td.get("nested").get("meta").update_(MetaData(8))
        column = td.get("column")
        if column._has_files():
            # A part of it cannot write its files.
            column[1:] = NonTensorData("view")
        else:
            column[1:].update_(NonTensorData("view"))

    in_fork(write)
    assert values(td) == ("new", ["x", "view", "view"], {4}, 8)


def test_an_assignment_at_an_index_is_shared():
    td = TensorDict(a=torch.zeros(2), column=["a", "b"], batch_size=[2]).share_memory_()
    in_fork(lambda: td.__setitem__(1, TensorDict(a=torch.ones(()), column="new")))
    assert td["column"] == ["a", "new"]
    assert td["a"].tolist() == [0, 1]


def test_without_asking_values_are_not_shared(tmp_path):
    for td in (make().memmap(), make().memmap(tmp_path)):
        assert "'new'" in in_fork(lambda td=td: td.set_("text", "new")["text"])
        assert td["text"] == "old"


def test_a_lock_holds_and_what_is_made_of_them_is_not_shared():
    td = make().share_memory_()
    with pytest.raises(RuntimeError, match="locked"):
        td.get("text").data = "new"
    copies = [
        td.clone(),
        pickle.loads(pickle.dumps(td)),
        td.to_tensordict(),
    ]
    in_fork(lambda: td.set_("text", "new").set_("column", ["x", "y", "z"]))
    assert values(td)[:2] == ("new", ["x", "y", "z"])
    for copy in copies:
        assert values(copy)[:2] == ("old", ["a", "b", "c"])


def test_other_containers_share_values():
    @tensorclass
    class Sample:
        number: torch.Tensor
        text: str

    sample = Sample(torch.zeros(2), "old", batch_size=[2]).share_memory_()
    in_fork(lambda: sample.set_("text", "new"))
    assert sample.text == "new"
    stack = lazy_stack([TensorDict(text=text) for text in ("a", "b")]).share_memory_()
    assert isinstance(stack, LazyStackedTensorDict)
    in_fork(lambda: stack[1].set_("text", "new"))
    assert stack["text"] == ["a", "new"]
    ragged = NonTensorStack.from_list([["a"], ["b", "c"]]).share_memory_()
    in_fork(lambda: ragged[1].update_(NonTensorData("new")))
    assert ragged.tolist() == [["a"], ["new", "new"]]


def test_what_is_an_entry_several_times_is_shared_once():
    part = TensorDict(text="old", column=["a", "b"], batch_size=[2])
    both = TensorDict(x=part, y=part, batch_size=[2])
    stack = lazy_stack([part, part])
    for td in (stack.share_memory_(), both.share_memory_()):
        in_fork(
            lambda: (
                part.set_("text", "new").get("column")[0].update_(NonTensorData("x"))
            )
        )
        assert (part["text"], part["column"]) == ("new", ["x", "b"])
        assert not td.is_empty()
    assert stack["column"] == [["x", "b"], ["x", "b"]]
    assert both["y", "text"] == "new"


def test_shapes_of_shared_columns():
    stack = NonTensorStack.from_list([["a", "b"], ["c", "d"]]).share_memory_()
    twin = stack.transpose(0, 1)
    in_fork(lambda: stack[0, 1].update_(NonTensorData(None)))
    assert stack.tolist() == [["a", None], ["c", "d"]]
    assert twin.tolist() == [["a", "c"], [None, "d"]]
    assert stack[torch.tensor([1, -1])].tolist() == [["c", "d"]] * 2
    flat = NonTensorStack("a", "b", "c").share_memory_()
    assert flat[torch.tensor([-1, 0])].tolist() == ["c", "a"]
    assert flat[1:].tolist() == ["b", "c"]
    assert torch.cat([flat, flat]).tolist() == ["a", "b", "c"] * 2
    with pytest.raises(IndexError):
        flat[torch.tensor([3])]
    assert (flat == NonTensorStack("a", "x", "c")).tolist() == [True, False, True]


@pytest.mark.parametrize(
    "value",
    [
        (1, (2,)),
        {1: "key"},
        1 << 80,
        float("inf"),
        "\ud800",
        True,
        functools.partial(int, "1"),
        torch.float32,
        b"",
    ],
)
def test_a_value_keeps_its_type(value):
    td = TensorDict(value=NonTensorData("old")).share_memory_()
    in_fork(lambda: td.set_("value", NonTensorData(value)))
    found = td["value"]
    assert type(found) is type(value)
    assert repr(found) == repr(value)


def test_the_object_that_was_shared_is_kept():
    value = {"k": [1]}
    td = TensorDict(value=NonTensorData(value)).share_memory_()
    assert td["value"] is value
    td.get("value").update_(NonTensorData(len))
    assert td["value"] is len
    assert td.share_memory_() is td
    assert td["value"] is len


def test_what_cannot_be_pickled():
    call = lambda: 1  # noqa: E731
    td = TensorDict(call=NonTensorData(call), text="old").share_memory_()
    # It was here before, and in each process that is forked.
    assert td["call"] is call
    assert in_fork(lambda: td["call"]()) == "1"
    with pytest.raises((pickle.PicklingError, AttributeError)):
        td.set_("text", NonTensorData(lambda: 2))
    assert td["text"] == "old"
    in_fork(lambda: td.set_("call", "new"))
    assert td["call"] == "new"


# Writers and readers --------------------------------------------------------------------


def write_without_end(td):
    number = 0
    while True:
        number += 1
        td.set_("text", NonTensorData([number] * 20_000))


def test_a_writer_killed_at_any_time_leaves_a_whole_value():
    td = TensorDict(text=NonTensorData([0] * 20_000), other="old").share_memory_()
    last = 0
    for round_ in range(8):
        pid = os.fork()
        if not pid:
            write_without_end(td)
        try:
            seen = set()
            patience = time.monotonic() + PATIENCE_S
            while len(seen) < 3 and time.monotonic() < patience:
                value = td["text"]
                assert len(value) == 20_000
                assert len(set(value)) == 1
                seen.add(value[0])
        finally:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        assert len(seen) == 3
        last = td["text"]
        assert len(last) == 20_000
        assert len(set(last)) == 1
        # The lock died with its owner.
        td.set_("other", f"round {round_}")
        assert td["other"] == f"round {round_}"
    td.set_("text", "end")
    assert td["text"] == "end"


def test_writers_in_several_processes_lose_nothing():
    column = NonTensorStack(*["old"] * 40).share_memory_()
    pids = []
    for first in range(4):
        pid = os.fork()
        if not pid:
            for number in range(200):
                for place in range(first, 40, 4):
                    column[place].update_(NonTensorData((place, number)))
            os._exit(0)
        pids.append(pid)
    for pid in pids:
        assert os.waitpid(pid, 0)[1] == 0
    assert column.tolist() == [(place, 199) for place in range(40)]


def test_the_memory_is_gone_with_the_last_holder():
    def num_open():
        names = []
        for name in os.listdir("/proc/self/fd"):
            try:
                names.append(os.readlink(f"/proc/self/fd/{name}"))
            except FileNotFoundError:
                continue
        return sum("tensordict-values" in name for name in names)

    before = num_open()
    td = make().share_memory_()
    assert num_open() == before + 1
    element = td.get("column")[0]
    del td
    assert num_open() == before + 1
    assert element.data == "a"
    del element
    assert num_open() == before
