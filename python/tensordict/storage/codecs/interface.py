"""The interface of a codec, and the table of codecs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tensordict.storage.encoding import Decoder, Encoder

__all__ = ["Codec", "codec_named", "codec_of", "register_codec"]

MSG_NAMELESS = "{} has no name: set the attribute `name`."

Path: TypeAlias = "tuple[str, ...]"
"""The keys that lead to a value, for messages and names of tensors."""

Value: TypeAlias = Any
"""A value of the classes of one codec, which knows them."""


class Codec:
    """A kind of value in checkpoints and messages: its JSON, and the way back.

    A class of your own says with :meth:`matches` which values it takes, with :meth:`encode`
    what JSON says of one, and makes the value again with :meth:`decode`.
    :func:`register_codec` makes it known, for writing and for reading.

    Examples:
        >>> import fractions, tempfile
        >>> from tensordict.checkpoint import Codec, load, register_codec, save
        >>> class FractionCodec(Codec):
        ...     name = "fraction"
        ...     classes = (fractions.Fraction,)
        ...
        ...     def encode(self, value, path, encoder):
        ...         return {"parts": [value.numerator, value.denominator]}
        ...
        ...     def decode(self, fields, decoder):
        ...         return fractions.Fraction(*fields["parts"])
        >>> register_codec(FractionCodec())
        >>> file = tempfile.mkdtemp() + "/rate.safetensors"
        >>> save(file, {"rate": fractions.Fraction(1, 3)})
        >>> load(file)
        {'rate': Fraction(1, 3)}
    """

    name: str = ""
    """The name of the kind in files, as the value of ``$``."""

    classes: tuple[type, ...] = ()
    """Classes whose values it takes; classes derived from these are others."""

    def matches(self, value: object) -> bool:
        """Return whether it takes a value that is of none of its :attr:`classes`."""
        return False

    def encode(self, value: Value, path: Path, encoder: Encoder) -> dict[str, Any]:
        """Return what JSON says of a value, beside its kind.

        Args:
            value: the value.
            path: the keys that lead to it.
            encoder: makes JSON of the values inside (:meth:`Encoder.encode`), and takes
                their tensors.
        """
        raise NotImplementedError

    def decode(self, fields: Mapping[str, Any], decoder: Decoder) -> Any:
        """Return the value of which :meth:`encode` has made ``fields``."""
        raise NotImplementedError


_NAMED: dict[str, Codec] = {}
_OF_CLASS: dict[type, Codec] = {}
_ORDER: list[Codec] = []


def register_codec(codec: Codec, *, is_last: bool = False) -> None:
    """Make a kind of value known to checkpoints and messages.

    It is asked before those that are known. Register it in each program that reads such
    values: nothing is imported because a file names it.

    Args:
        codec: the codec, in the place of one with its name.
        is_last: whether it is asked after those that are known.

    Raises:
        ValueError: it has no name.
    """
    if not codec.name:
        raise ValueError(MSG_NAMELESS.format(type(codec).__name__))
    old = _NAMED.get(codec.name)
    if old is not None:
        _ORDER.remove(old)
        for cls in old.classes:
            del _OF_CLASS[cls]
    _NAMED[codec.name] = codec
    _OF_CLASS.update(dict.fromkeys(codec.classes, codec))
    _ORDER.insert(len(_ORDER) if is_last else 0, codec)


def codec_of(value: object) -> Codec | None:
    """Return the codec that takes a value; None if there is none."""
    found = _OF_CLASS.get(type(value))
    if found is not None:
        return found
    return next((codec for codec in _ORDER if codec.matches(value)), None)


def codec_named(name: str) -> Codec | None:
    """Return the codec of the kind that a file names; None if it is not known here."""
    return _NAMED.get(name)
