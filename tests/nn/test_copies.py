"""Modules copied, pickled and saved after a swap; settings seen by threads."""

import copy
import io
import pickle
import threading

import pytest
import torch
from torch import nn

from tensordict import TensorDict
from tensordict.nn import (
    InteractionType,
    TensorDictModule,
    TensorDictSequential,
    interaction_type,
    set_interaction_type,
    set_skip_existing,
    skip_existing,
)


def saved(module):
    buffer = io.BytesIO()
    torch.save(module, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)


COPIES = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda module: pickle.loads(pickle.dumps(module)),
    "torch.save": saved,
}


@pytest.mark.parametrize("way", COPIES)
def test_module_is_copied_after_a_swap(way):
    module = TensorDictSequential(
        TensorDictModule(nn.Linear(3, 4), ["a"], ["b"]),
        TensorDictModule(nn.LayerNorm(4), ["b"], ["c"]),
        selected_out_keys=["c"],
    )
    td = TensorDict(a=torch.randn(2, 3), batch_size=[2])
    expected = module(td.copy())["c"]
    params = TensorDict.from_module(module).data.clone().zero_()
    with params.to_module(module):
        assert (module(td.copy())["c"] == 0).all()
    copied = COPIES[way](module)
    result = copied(td.copy())
    assert torch.equal(result["c"], expected)
    assert list(result.keys()) == ["a", "c"]
    own, other = list(module.parameters()), list(copied.parameters())
    assert all(isinstance(parameter, nn.Parameter) for parameter in other)
    assert not any(one is two for one, two in zip(own, other, strict=True))


@pytest.mark.parametrize("way", COPIES)
def test_copy_within_a_swap_has_what_was_put_in(way):
    module = TensorDictModule(nn.Linear(3, 4), ["a"], ["b"])
    params = TensorDict.from_module(module).data.clone().zero_()
    with params.to_module(module):
        copied = COPIES[way](module)
    assert (copied(a=torch.ones(3)) == 0).all()
    assert not (module(a=torch.ones(3)) == 0).any()


def test_lazy_module_is_called_then_swapped():
    module = TensorDictModule(nn.LazyLinear(2), ["a"], ["b"])
    module(TensorDict(a=torch.ones(4)))
    params = TensorDict.from_module(module).data.clone().zero_()
    with params.to_module(module):
        assert (module(a=torch.ones(4)) == 0).all()


def in_thread(function):
    found = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join()
    return found[0]


def test_settings_hold_for_other_threads():
    with set_interaction_type("mean"), set_skip_existing():
        assert in_thread(interaction_type) is InteractionType.MEAN
        assert in_thread(skip_existing) is True
    assert in_thread(interaction_type) is None


def test_settings_of_a_thread_hold_for_it_alone():
    with (
        set_interaction_type("mean", thread_local=True),
        set_skip_existing(thread_local=True),
    ):
        assert in_thread(interaction_type) is None
        assert in_thread(skip_existing) is False
        module = TensorDictModule(torch.neg, ["a"], ["b"])
        td = TensorDict(a=torch.ones(1), b=torch.zeros(1))
        assert module(td.copy())["b"].item() == 0
        assert in_thread(lambda: module(td.copy())["b"].item()) == -1
