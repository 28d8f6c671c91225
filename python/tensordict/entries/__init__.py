"""The kinds of special entries: a file for each, and a line in the table here.

:mod:`tensordict.primitives.special` has the interface.
"""

from tensordict.entries.ragged import Ragged
from tensordict.entries.unbatched import Unbatched
from tensordict.primitives.special import register_entry_kind

__all__: list[str] = []

for _kind in (Unbatched(), Ragged()):
    register_entry_kind(_kind)
