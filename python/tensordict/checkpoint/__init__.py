"""Checkpoints of a training: steps of several items, and files of one object.

:func:`save` and :func:`load` write and read one file. :class:`Checkpointer` saves
steps: models, optimizers, loaders and plain data, optionally in the background. It
restores them bit for bit.

Where to start reading: ``checkpointer.py`` contains the public class, ``kinds/`` a
class for each kind of item. ``shares.py`` divides the items over ranks, ``writing.py``
plans the files of a step, ``restoring.py`` reads, compares and then changes the items.
The format of a step is in ``docs/format.md``. The other files, by task:

- many ranks: ``distributed.py``, ``lost_ranks.py``, ``descriptions.py``, ``copies.py``,
  ``placing.py``, ``turns.py``
- files of a step: ``steps.py``, ``files.py``, ``headers.py``, ``ranges.py``
- reading: ``reading.py``, ``reads.py``, ``comparing.py``, ``loading.py``
- object stores: ``mirroring.py``, ``mirror.py``, ``uploading.py``, ``remote_*.py``
- other formats: ``exporting.py``, ``export*.py``, ``foreign.py``, ``dcp*.py``,
  ``lazy_state.py``, ``optimizer_forms.py``
- the command line: ``tools.py``
"""

from tensordict.checkpoint.checkpointer import Checkpointer
from tensordict.checkpoint.kinds import Kind, register_kind
from tensordict.checkpoint.one_file import load, save
from tensordict.checkpoint.restoring import Restored
from tensordict.storage.codecs import Codec, register_codec

__all__ = [
    "Checkpointer",
    "Codec",
    "Kind",
    "Restored",
    "load",
    "register_codec",
    "register_kind",
    "save",
]
