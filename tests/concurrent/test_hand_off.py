"""Collections go to other processes: descriptors, shared memory, buffers of pickles."""

import multiprocessing
import pickle
import resource
import threading

import numpy as np
import pytest
import torch

from tensordict import TensorDict, lazy_stack, tensorclass

FORK = multiprocessing.get_context("fork")
MANY = 3000


@pytest.fixture
def few_descriptors():
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def many(rows=4):
    return TensorDict(
        {str(at): torch.full((rows,), at) for at in range(MANY)}, batch_size=[rows]
    )


def storages(td):
    return {leaf.untyped_storage().data_ptr() for leaf in td.values(True, True)}


def _answer(queue, done):
    queue.put(many())
    done.wait(60)


@pytest.mark.usefixtures("few_descriptors")
def test_many_leaves_go_through_a_queue():
    queue, done = FORK.Queue(), FORK.Event()
    process = FORK.Process(target=_answer, args=(queue, done))
    process.start()
    found = queue.get(timeout=60)
    done.set()
    process.join()
    assert (found == many()).all()
    assert len(storages(found)) == 1


class Rows(torch.utils.data.Dataset):
    def __init__(self, td):
        self.td = td

    def __len__(self):
        return len(self.td)

    def __getitem__(self, at):
        return self.td[at]


@pytest.mark.usefixtures("few_descriptors")
@pytest.mark.parametrize("collate", [torch.stack, None, list])
def test_many_leaves_come_from_a_data_loader(collate):
    td = many()
    loader = torch.utils.data.DataLoader(
        Rows(td), batch_size=2, num_workers=2, collate_fn=collate, timeout=60
    )
    batches = list(loader)
    assert len(batches) == 2
    for number, batch in enumerate(batches):
        rows = torch.stack(batch) if collate is list else batch
        assert (rows == td[2 * number : 2 * number + 2]).all()


@pytest.mark.usefixtures("few_descriptors")
def test_many_leaves_are_shared_by_one_descriptor():
    td = many()
    leaves = dict(td.items())
    assert td.share_memory_() is td
    assert td.is_shared()
    assert len(storages(td)) == 1
    for key, leaf in leaves.items():
        assert td[key] is leaf
        assert leaf.is_shared()
    assert (td == many()).all()


def through_a_pipe(value):
    ours, theirs = multiprocessing.Pipe()
    thread = threading.Thread(target=ours.send, args=(value,))
    thread.start()
    assert theirs.poll(60)
    found = theirs.recv()
    thread.join()
    ours.close()
    theirs.close()
    return found


@tensorclass
class Sample:
    x: torch.Tensor
    y: torch.Tensor
    label: str


COLLECTIONS = {
    "dense": lambda: TensorDict(
        a=torch.arange(3), b={"c": torch.ones(3, 2)}, batch_size=[3]
    ),
    "lazy stack": lambda: lazy_stack(
        [TensorDict(a=torch.ones(n), b=torch.ones(n)) for n in (1, 2)]
    ),
    "tensorclass": lambda: Sample(
        torch.zeros(2), torch.ones(2), "text", batch_size=[2]
    ),
    "parameters": lambda: TensorDict(
        a=torch.nn.Parameter(torch.ones(2)), b=torch.nn.Parameter(torch.ones(2))
    ),
    "other dtypes": lambda: TensorDict(
        a=torch.tensor([1 + 2j]), b=torch.tensor([True]), c=torch.empty(1, 0)
    ),
}


@pytest.mark.parametrize("kind", COLLECTIONS)
def test_what_is_written_after_sending_is_seen_by_both(kind):
    td = COLLECTIONS[kind]()
    found = through_a_pipe(td)
    assert type(found) is type(td)
    assert (found == td).all()
    with torch.no_grad():
        td.zero_()
    assert (found == td).all()


def test_leaves_of_one_memory_keep_sharing_it():
    whole = torch.arange(6.0)
    td = TensorDict(a=whole[:4].detach(), b=whole[2:].detach(), c=torch.zeros(2))
    del whole
    found = through_a_pipe(td)
    found["a"][2] = -1
    assert td["b"][0] == td["a"][2] == found["b"][0] == -1
    assert len(storages(found)) == 1


def test_a_tensor_outside_and_an_array_see_what_is_written():
    outside = torch.zeros(3)
    td = TensorDict(a=outside.view(3), b=torch.zeros(2), c=torch.zeros(2))
    td.share_memory_()
    td["a"].fill_(1)
    assert outside.tolist() == [1, 1, 1]
    assert len(storages(td)) == 2


def test_gradients_and_versions_stay():
    td = TensorDict(a=torch.nn.Parameter(torch.ones(2)), b=torch.zeros(2))
    loss = (td["a"] * td["a"]).sum()
    td.share_memory_()
    loss.backward()
    assert td["a"].grad.tolist() == [2, 2]


def test_a_large_storage_is_shared_by_itself(monkeypatch):
    from tensordict.storage.tensors import arena

    monkeypatch.setattr(arena, "_LARGE", 1024)
    td = TensorDict({str(size): torch.zeros(size) for size in (1, 2, 999, 3)})
    td.share_memory_()
    assert len(storages(td)) == 2


def test_mapped_collections_travel_as_file_names(tmp_path):
    td = TensorDict(a=torch.arange(4), b=torch.ones(4), batch_size=[4])
    td.memmap_(tmp_path)
    assert through_a_pipe(td).is_memmap()
    found = through_a_pipe(td[1:])
    found["a"][0] = 9
    assert td["a"].tolist() == [0, 9, 2, 3]
    assert str(tmp_path) in str(found["a"].filename)


# Pickles of protocol 5 -----------------------------------------------------------------


def buffered(value):
    buffers = []
    return pickle.dumps(value, 5, buffer_callback=buffers.append), buffers


@pytest.mark.parametrize("kind", COLLECTIONS)
def test_pickles_with_buffers_are_whole(kind):
    td = COLLECTIONS[kind]()
    content, buffers = buffered(td)
    for found in (
        pickle.loads(pickle.dumps(td, 5)),
        pickle.loads(content, buffers=buffers),
        pickle.loads(content, buffers=[bytes(one) for one in buffers]),
    ):
        assert type(found) is type(td)
        assert (found == td).all()


def test_buffers_are_not_copied():
    td = TensorDict(a=torch.zeros(1000), b={"c": torch.zeros(1000).bfloat16()})
    content, buffers = buffered(td)
    assert len(content) < 1000
    assert len(buffers) == 2
    found = pickle.loads(content, buffers=buffers)
    found["b", "c"].fill_(3)
    assert td["b", "c"].sum() == 3000


def test_a_view_is_pickled_without_what_is_around_it():
    whole = torch.arange(10_000).view(100, 100)
    td = TensorDict(row=whole[3], column=whole[:, 3], few=whole[2:4], one=whole[:1].mT)
    content = pickle.dumps(td, 5)
    assert len(content) < 8 * 600
    found = pickle.loads(content)
    assert (found == td).all()
    assert found["row"].untyped_storage().nbytes() == 800
    assert found["one"].stride() == td["one"].stride()


def test_a_tensor_that_is_there_twice_is_one():
    tensor = torch.zeros(3)
    found = pickle.loads(pickle.dumps(TensorDict(a=tensor, b={"c": tensor}), 5))
    assert found["a"] is found["b", "c"]


def test_buffers_that_are_bytes_are_not_changed():
    content, buffers = buffered(TensorDict(a=torch.ones(3)))
    kept = [bytes(one) for one in buffers]
    pickle.loads(content, buffers=kept)["a"].zero_()
    assert np.frombuffer(kept[0], np.float32).tolist() == [1, 1, 1]


def test_a_consolidated_collection_is_one_buffer():
    td = TensorDict(a=torch.zeros(30), b=torch.ones(30)).consolidate()
    content, buffers = buffered(td)
    assert len(buffers) == 1
    found = pickle.loads(content, buffers=buffers)
    assert found.is_consolidated()
    assert (found == td).all()
