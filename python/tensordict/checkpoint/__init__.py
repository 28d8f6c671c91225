"""Checkpoints of a training: written whole, in the background if wished, and restored.

:func:`save` and :func:`load` are for one file. :class:`Checkpointer` saves steps of models, optimizers and whatever else a training has, and
restores them bit for bit. Where to start reading: ``checkpointer.py`` has the public class,
``kinds/`` has a class for each kind of item, ``shares.py`` divides them over ranks, ``writing.py`` plans
the files of a step, ``restoring.py`` reads, compares and then changes.
The format of a step is in ``docs/format.md``.
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
