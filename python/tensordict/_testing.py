"""Established import path: a class for tests of communication between processes."""

import torch

from tensordict.tensorclass import tensorclass

__all__ = ["MyDistData", "tensorclass"]


@tensorclass
class MyDistData:
    """A tensorclass with two tensor fields."""

    a: torch.Tensor
    b: torch.Tensor
