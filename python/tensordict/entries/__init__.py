"""The kinds of special entries: one file for each kind, registered in the table here.

:mod:`tensordict.primitives.special` defines the interface of a kind.
"""

from tensordict.entries.ragged import Ragged
from tensordict.entries.unbatched import Unbatched
from tensordict.primitives.special import register_entry_kind

__all__: list[str] = []

for _kind in (Unbatched(), Ragged()):
    register_entry_kind(_kind)
