"""Tensors without memory of their own: each kind is met as often as any other tensor."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from tensordict import TensorDict


def fake(value):
    return FakeTensorMode().from_tensor(value)


def quantized(value):
    return torch.quantize_per_tensor(value, 0.5, 0, torch.quint8)


KINDS = {
    "meta": lambda value: value.to("meta"),
    "sparse": torch.Tensor.to_sparse,
    "fake": fake,
    "quantized": quantized,
    "parameter on meta": lambda value: torch.nn.Parameter(value.to("meta")),
}


@pytest.mark.filterwarnings("ignore:.*quantiz.*")
@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
def test_they_are_stored_and_measured_each_time(make):
    value = make(torch.ones(3, 2))
    td = TensorDict(batch_size=[3])
    for _ in range(3):
        assert td.set("a", value)["a"] is value
        with pytest.raises(RuntimeError, match="batch dimension mismatch"):
            td.set("b", make(torch.ones(2, 3)))
        # Ordinary tensors in between are seen as what they are.
        assert td.set("c", torch.ones(3))["c"].shape == (3,)
        with pytest.raises(RuntimeError, match="batch dimension mismatch"):
            td.set("c", torch.ones(2))


def test_transformed_tensors_are_stored_and_measured_each_time():
    def twice(td):
        for key in ("a", "b"):
            td.set(key, td.get("x") * 2)
            with pytest.raises(RuntimeError, match="batch dimension mismatch"):
                td.set("c", torch.ones(7))
        return td

    td = TensorDict(x=torch.ones(2, 3, 4), batch_size=[2, 3])
    assert (torch.vmap(twice)(td)["b"] == 2).all()
    assert torch.func.grad(lambda td: td.set("y", td["x"] ** 2)["y"].sum())(
        td
    ).shape == (
        2,
        3,
    )
