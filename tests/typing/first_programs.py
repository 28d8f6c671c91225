"""Programs for type checkers: the first ones that users write, a function for each."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import assert_type

import numpy as np
import torch
from torch import Tensor, nn

from tensordict import (
    LazyStackedTensorDict,
    MetaData,
    NonTensorData,
    NonTensorStack,
    TensorClass,
    TensorDict,
    TensorDictBase,
    TensorDictParams,
    lazy_stack,
    stack,
)
from tensordict.checkpoint import Checkpointer
from tensordict.data import BatchLoader, DatasetWriter, gather
from tensordict.nn import (
    InteractionType,
    ProbabilisticTensorDictModule,
    ProbabilisticTensorDictSequential,
    TensorDictModule,
    TensorDictModuleBase,
    TensorDictSequential,
    dispatch,
    set_interaction_type,
)


class Data(TensorClass):
    image: Tensor
    label: Tensor
    name: str = "a"


def rows() -> TensorDict:
    return TensorDict({"x": torch.zeros(4, 3), "n": {"y": torch.ones(4)}}, [4])


def construction() -> None:
    made = TensorDict({"x": torch.zeros(3), "n": {"y": [1, 2, 3]}}, batch_size=[3])
    TensorDict(x=torch.zeros(3), text="a", batch_size=torch.Size([3]), device="cpu")
    TensorDict.from_dict({"x": np.zeros(3)}, auto_batch_size=True)
    assert_type(made.clone().to("cpu").reshape(-1), TensorDict)
    assert_type(len(made), int)


def indexing() -> None:
    td = rows()
    assert_type(td[0], TensorDict)
    assert_type(td[1:3], TensorDict)
    assert_type(td[torch.tensor([True, False, True, False])], TensorDict)
    assert_type(td[[0, 2]], TensorDict)
    td[0] = TensorDict({"x": torch.ones(3), "n": {"y": torch.ones(())}})
    td[:2] = 0
    first: Tensor = td[0]["x"]
    assert first.shape == (3,)


def nested() -> None:
    td = rows()
    leaf: Tensor = td["n", "y"]
    inner: TensorDict = td["n"]
    td["n", "m", "w"] = leaf + inner["y"]
    total: Tensor = td["n"]["m"]["w"].sum()
    assert total.shape == ()
    if td.get(("n", "q"), None) is not None:
        raise AssertionError
    assert [key for key, value in td.items() if value.shape]


def classes() -> None:
    data = Data(image=torch.zeros(4, 3), label=torch.zeros(4), batch_size=[4])
    assert_type(data[0], Data)
    assert_type(data[:2].image, Tensor)
    assert_type(data.to("cpu"), Data)
    assert_type(Data.stack([data, data]), Data)
    for each in data.unbind(0):
        each.label.sum()
    data.name = "b"


def stack_of_dicts() -> None:
    plain = [{"x": torch.zeros(3), "text": "a"} for _ in range(4)]
    members = [TensorDict(row) for row in plain]
    assert_type(TensorDict.stack(members, 0), TensorDict)
    assert_type(stack(members, 0), TensorDict)
    lazy = lazy_stack(members, 0)
    assert_type(lazy, LazyStackedTensorDict)
    assert_type(lazy[0], TensorDict)
    assert_type(lazy[:2], LazyStackedTensorDict)
    x: Tensor = lazy["x"]
    assert x.shape == (4, 3)


def modules() -> None:
    first = TensorDictModule(nn.Linear(3, 4), in_keys=["x"], out_keys=["h"])
    second = TensorDictModule(nn.Linear(4, 1), in_keys=["h"], out_keys=["y"])
    sequence = TensorDictSequential(first, second)
    out: TensorDict = sequence(rows())
    y: Tensor = out["y"]
    h: Tensor = first(torch.zeros(2, 3))
    named: Tensor = first(x=torch.zeros(2, 3))
    assert (y.mean() + h.mean() + named.mean()).requires_grad
    part = sequence.select_subsequence(out_keys=["h"])
    assert part(rows())["h"].shape == (4, 4)
    assert [module.in_keys for module in sequence] == [["x"], ["h"]]
    assert len(sequence) == 2


class Plus(TensorDictModuleBase):
    in_keys = ["x"]  # noqa: RUF012
    out_keys = ["y"]  # noqa: RUF012

    @dispatch
    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        tensordict["y"] = tensordict["x"] + 1
        return tensordict


def own_module() -> None:
    y: Tensor = Plus()(rows())["y"]
    assert y.shape == (4, 3)


def probabilistic() -> None:
    net = TensorDictModule(lambda x: (x, x.exp()), in_keys=["x"], out_keys=["l", "s"])
    draw = ProbabilisticTensorDictModule(
        in_keys={"loc": "l", "scale": "s"},
        out_keys=["a"],
        distribution_class=torch.distributions.Normal,
    )
    policy = ProbabilisticTensorDictSequential(net, draw)
    with set_interaction_type(InteractionType.DETERMINISTIC):
        out: TensorDict = policy(rows())
    assert policy.get_dist(rows()).log_prob(out["a"]).shape == (4, 3)


def doubled(td: TensorDict) -> TensorDict:
    return td.set("y", td["x"] * 2)


def doubled_of_any(td: TensorDictBase) -> TensorDictBase:
    return td.set("y", td["x"] * 2)


def mapped() -> None:
    out: TensorDict = rows().map(
        doubled, 0, num_workers=1, chunksize=2, backend="threads"
    )
    assert out["y"].shape == (4, 3)
    for part in rows().map_iter(
        doubled_of_any, 0, num_workers=1, chunksize=2, backend="threads"
    ):
        assert part["y"].shape == (2, 3)


def loader() -> None:
    for batch in BatchLoader(rows(), 2, shuffle=True):
        x: Tensor = batch["x"]
        assert x.shape == (2, 3)


def files() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        assert_type(rows().memmap(folder / "rows"), TensorDict)
        back = TensorDict.load_memmap(folder / "rows")
        assert_type(gather(back, [0, 2]), TensorDict)
        with DatasetWriter(folder / "written") as writer:
            writer.append({"x": torch.zeros(3), "t": "a"})
        model = nn.Linear(2, 2)
        checkpointer = Checkpointer(folder / "run", keep=2)
        checkpointer.save(1, model=model, metrics={"loss": 0.1})
        checkpointer.restore(model=model)
        assert checkpointer.steps() == [1]


def parameters() -> None:
    net = nn.Linear(3, 4)
    params = TensorDict.from_module(net)
    with params.to_module(net):
        net(torch.zeros(3))
    assert all(each.requires_grad for each in TensorDictParams(params).parameters())


def calculated() -> None:
    td = rows()
    assert_type(td + 1, TensorDict)
    assert_type(-td * td, TensorDict)
    assert_type((td == td).all(), bool)
    assert_type(td.apply(lambda x: x + 1), TensorDict)
    assert_type(td.mean(dim=0), TensorDict)
    total: Tensor = torch.vmap(lambda row: row["x"].sum())(td)
    assert total.shape == (4,)


def number_of(value: MetaData[int]) -> int:
    number: int = value.data
    return number


def text_of(value: NonTensorData[str]) -> str:
    return str(value.data)


def values() -> None:
    assert number_of(MetaData[int](3)) == 3
    assert number_of(MetaData(3)) == 3
    assert text_of(NonTensorData("a")) == "a"
    texts: list[str] = NonTensorStack("a", "b").tolist()
    td = TensorDict({"t": texts}, batch_size=[2])
    read: list[str] = td.get_non_tensor("t")
    assert read == ["a", "b"]


for program in (
    *(construction, indexing, nested, classes, stack_of_dicts, modules, own_module),
    *(probabilistic, mapped, loader, files, parameters, calculated, values),
):
    program()
