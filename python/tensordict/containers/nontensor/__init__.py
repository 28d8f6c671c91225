"""Non-tensor data: entries that hold Python objects.

``data.py`` defines one value for all rows of a batch, ``stack.py`` one value for each
element. ``convert.py`` converts Python objects to entries, and ``shared.py`` holds
values that processes share. Programs, pickles and files find the classes under
:mod:`tensordict.tensorclass`.
"""

from tensordict.containers.nontensor.data import NonTensorData, NonTensorDataBase
from tensordict.containers.nontensor.metadata import MetaData
from tensordict.containers.nontensor.shared import install
from tensordict.containers.nontensor.stack import NonTensorStack
from tensordict.containers.nontensor.write_through import LinkedList

__all__ = [
    "LinkedList",
    "MetaData",
    "NonTensorData",
    "NonTensorDataBase",
    "NonTensorStack",
]

install(NonTensorData, MetaData, NonTensorStack)
