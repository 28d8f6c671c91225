"""Established import path: functions that make collections of Python objects."""

from tensordict.factories import (
    from_any,
    from_dict,
    from_namedtuple,
    from_struct_array,
    from_tuple,
)

__all__ = [
    "from_any",
    "from_dict",
    "from_namedtuple",
    "from_struct_array",
    "from_tuple",
]
