# ruff: noqa: F401, F403, N802, N814, RUF012 (short names, as programs have them)
"""The start of the programs of ``cases_nn``, which import all of it."""

import torch
from torch import Tensor, nn
from torch import distributions as d

from tensordict import LazyStackedTensorDict, TensorClass, TensorDict
from tensordict import nn as tdnn
from tensordict.nn import *
from tensordict.nn import (
    CompositeDistribution,
    TensorClassModuleBase,
    TensorDictModuleBase,
    dispatch,
)
from tensordict.nn import ProbabilisticTensorDictModule as PM
from tensordict.nn import ProbabilisticTensorDictSequential as PS
from tensordict.nn import TensorDictModule as M
from tensordict.nn import TensorDictModuleBase as MB
from tensordict.nn import TensorDictModuleWrapper as W
from tensordict.nn import TensorDictSequential as S
from tensordict.nn.distributions import Delta

torch.manual_seed(0)


def T(shape, start=0):
    """The tensor of the prelude."""
    count = torch.Size(shape).numel()
    return ((torch.arange(count) * 7 + start) % 11 - 3).reshape(shape).float()


def D(td):
    """A collection whose whole state is the answer."""
    return td


def one(x):
    return x + 1


def add(x, y):
    return x + y


def two(x):
    return x + 1, x * 2


def double(tensordict, k=2):
    return tensordict.set("z", tensordict["a"] * k)


class Dispatched(TensorDictModuleBase):
    in_keys = ["a", "b"]
    out_keys = ["z"]

    @dispatch
    def forward(self, tensordict):
        self.seen = (list(tensordict.keys()), tensordict.batch_size)
        return tensordict.set("z", tensordict["a"] + 1)


class Nested(TensorDictModuleBase):
    in_keys = ["a", ("n", "c")]
    out_keys = ["z", ("n", "w")]

    @dispatch(separator=".", auto_batch_size=False)
    def forward(self, tensordict):
        self.seen = tensordict.batch_size
        tensordict["z"] = tensordict["a"] + tensordict["n", "c"]
        return tensordict.set(("n", "w"), tensordict["a"])


class Named(nn.Module):
    reads = ["a"]
    writes = ["z"]

    @dispatch(source="reads", dest="writes")
    def forward(self, tensordict, k=3):
        return tensordict.set("z", tensordict["a"] + k)

    @dispatch(source=["a", ("n", "c")], dest=["z"])
    def other(self, tensordict):
        return tensordict.set("z", tensordict["a"] + tensordict["n", "c"])


class Empty(TensorDictModuleBase):
    def forward(self, tensordict):
        return tensordict


class Two(TensorClass):
    a: Tensor
    b: Tensor


class One(TensorClass):
    z: Tensor


class AddFields(TensorClassModuleBase[Two, One]):
    def forward(self, x):
        return One(z=x.a + x.b, batch_size=x.batch_size)


def normal(**kwargs):
    keys = {"in_keys": ["loc", "scale"], "out_keys": ["x"]}
    return PM(distribution_class=d.Normal, **(keys | kwargs))


def loc_scale():
    return TensorDict(loc=T([3, 4]), scale=torch.ones(3, 4), batch_size=[3])


MAP = {"c": d.Normal, ("n", "d"): d.Categorical}


def P():
    """Parameters of two distributions."""
    normal = {"loc": T([3, 4]), "scale": torch.ones(3, 4)}
    return TensorDict({"c": normal, ("n", "d"): {"logits": T([3, 5])}}, [3])


def C(**kwargs):
    return CompositeDistribution(P(), MAP, **kwargs)


def params():
    return TensorDict({"params": P()}, [3])


def CP(**kwargs):
    options = {
        "in_keys": ["params"],
        "out_keys": ["c", ("n", "d")],
        "distribution_class": CompositeDistribution,
        "distribution_kwargs": {"distribution_map": MAP},
    }
    return PM(**(options | kwargs))
