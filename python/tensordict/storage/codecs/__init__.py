"""The kinds of values in checkpoints and messages: a codec for each kind, and their table."""

from tensordict.storage.codecs.collections import COLLECTIONS
from tensordict.storage.codecs.interface import (
    Codec,
    codec_named,
    codec_of,
    register_codec,
)
from tensordict.storage.codecs.tensors import TENSORS
from tensordict.storage.codecs.values import VALUES

__all__ = ["Codec", "codec_named", "codec_of", "register_codec"]

for _codec in (*TENSORS, *COLLECTIONS, *VALUES):
    register_codec(_codec, is_last=True)
