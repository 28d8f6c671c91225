"""Established import path: pipes between processes."""

from typing import TYPE_CHECKING

from tensordict._established import established_names
from tensordict.distributed.pipe_servers import TensorDictServer
from tensordict.distributed.pipes import (
    TensorDictPipe,
    recv_tensordict,
    send_tensordict,
)

__all__ = ["TensorDictPipe", "TensorDictServer", "recv_tensordict", "send_tensordict"]

if not TYPE_CHECKING:  # which is to find names that there are not
    __getattr__ = established_names(__name__)
