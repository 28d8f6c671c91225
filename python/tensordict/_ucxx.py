"""Established import path: messages by UCX, which wait for a later version."""

from typing import TYPE_CHECKING

from tensordict import _later
from tensordict._established import established_names

__all__ = ["TensorDictPipe", "TensorDictServer", "recv_tensordict", "send_tensordict"]

recv_tensordict = _later.function("recv_tensordict")
send_tensordict = _later.function("send_tensordict")


class TensorDictPipe(_later.Later):
    """One end of a connection."""


class TensorDictServer(_later.Later):
    """Accept connections."""


if not TYPE_CHECKING:  # which is to find names that there are not
    __getattr__ = established_names(__name__)
