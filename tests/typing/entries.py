"""Programs for type checkers: entries that are read by key; run as a test as well."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tensordict import (
    LazyStackedTensorDict,
    TensorClass,
    TensorDict,
    TensorDictBase,
    TensorDictParams,
    lazy_stack,
)
from tensordict.nn import TensorDictModule, TensorDictModuleBase


class Boxes(TensorClass):
    xyxy: Tensor


class Doubled(TensorDictModuleBase):
    in_keys = ["a"]
    out_keys = ["doubled"]

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        return tensordict.set("doubled", tensordict["a"] * 2)


def make() -> TensorDict:
    boxes = Boxes(torch.zeros(3, 4), batch_size=[3])
    nested = {"b": torch.ones(3), "mask": torch.tensor([True, False, True])}
    entries = {"a": torch.rand(3, 4), "n": nested, "boxes": boxes, "text": "text"}
    return TensorDict(entries, batch_size=[3])


def returned(td: TensorDict) -> Tensor:
    return td["a"]


def returned_as_number(td: TensorDict) -> float:
    return td["a"].mean().item()


def returned_from_a_path(td: TensorDict) -> Tensor:
    return td["n"]["b"] + td["n", "b"]


def returned_as_a_collection(td: TensorDict) -> TensorDictBase:
    return td["n"].clone()


def returned_as_text(td: TensorDict) -> str:
    return td["text"]


def returned_by_default(td: TensorDict, key: str) -> Tensor | None:
    return td.get(key, None)


def returned_for_each_key(td: TensorDict, keys: list[str]) -> dict[str, Tensor]:
    return {key: td[key] for key in keys}


def returned_from_a_stack(td: TensorDict) -> TensorDict:
    stacked: LazyStackedTensorDict = lazy_stack([td, td])
    return stacked[0]


def discounted(td: TensorDict) -> Tensor:
    return (1 - td["a"]).mean() + 0.5 * td["a"].sum() - 2 * td["n", "b"].sum()


def changed_step_by_step(td: TensorDict) -> Tensor:
    x = td["a"]
    x = x * 2
    x = x.reshape(-1)
    return x[0]


def indexed_by_an_entry(td: TensorDict) -> TensorDict:
    return td[td["n", "mask"]]


def a_loss(td: TensorDict) -> Tensor:
    logits, label = td["a"], td["n", "b"].long()
    weights: list[Tensor] = [td["n", name].float() for name in ("b", "mask")]
    return nn.functional.cross_entropy(logits, label) + torch.stack(weights).sum()


def entries_of_all_kinds(td: TensorDict) -> list[str]:
    value = td["boxes"]
    if isinstance(value, Boxes):
        return [f"{value.xyxy.dtype}"]
    if isinstance(value, Tensor):
        return [f"{value.dtype}"]
    return [*value.keys()]


def changes(td: TensorDict) -> Tensor:
    td["n"]["c"] = torch.zeros(3)
    td["n"].update({"d": torch.zeros(3)})
    td["a"][0] = 1
    td["a"] += 1
    td["n"] = td["n"].select("c").to("cpu")
    moved: TensorDict = td.pop("n").unsqueeze(-1)
    return moved["c"].squeeze(-1) + td.pop("a").sum()


def calls_of_modules(td: TensorDict) -> Tensor:
    module = TensorDictModule(nn.Linear(4, 2), in_keys=["a"], out_keys=["h"])
    direct: Tensor = module(td["a"])
    return module(td)["h"] + direct + Doubled()(td)["doubled"].sum()


def parameters(params: TensorDictParams) -> Tensor:
    if params.grad is not None:
        return params.grad["w"]
    return params["w"] + params.data["w"] + params[None]["w"].sum()


for _program in (
    returned,
    returned_as_number,
    returned_from_a_path,
    returned_as_a_collection,
    returned_as_text,
    returned_from_a_stack,
    discounted,
    changed_step_by_step,
    indexed_by_an_entry,
    a_loss,
    entries_of_all_kinds,
    calls_of_modules,
    changes,
):
    _program(make())
assert returned_by_default(make(), "missing") is None
assert [*returned_for_each_key(make(), ["a"])] == ["a"]
parameters(TensorDictParams(TensorDict(w=torch.zeros(2))))
