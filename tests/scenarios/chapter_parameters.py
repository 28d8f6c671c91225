"""Parameters: modules as collections of their parameters, tying, and swapping."""

from __future__ import annotations

import torch
from scenario import scenario
from torch import nn

from tensordict import TensorDict, TensorDictParams


@scenario
def parameters_of_a_module_are_its_own():
    module = nn.Linear(2, 3)
    params = TensorDict.from_module(module)
    params["bias"].data.fill_(1)
    return params["weight"] is module.weight, module.bias.detach().clone(), params


@scenario
def a_clone_of_tied_parameters_stays_tied():
    weight = nn.Parameter(torch.ones(2))
    params = TensorDictParams(TensorDict(a=weight, b=weight))
    clone = params.clone()
    return clone["a"] is clone["b"], clone["a"] is params["a"]
