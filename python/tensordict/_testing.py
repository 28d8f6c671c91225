"""Established import path: a class for tests of messages between processes."""

import torch

from tensordict.tensorclass import tensorclass

__all__ = ["MyDistData", "tensorclass"]


@tensorclass
class MyDistData:
    """Two fields of tensors."""

    a: torch.Tensor
    b: torch.Tensor
