"""Values that are no tensors, as entries of containers.

``data.py`` has one value for all elements of a batch, ``stack.py`` one value for each;
``convert.py`` says what becomes which, and ``shared.py`` keeps values that processes
share. :mod:`tensordict.tensorclass` is where programs, pickles and files find the
classes.
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
