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

if not TYPE_CHECKING:  # so that type checkers find unknown names
    __getattr__ = established_names(__name__)
