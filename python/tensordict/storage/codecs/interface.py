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
"""A value of a class that the codec handles."""


class Codec:
    """A codec: it converts one kind of values to JSON and back.

    To support further classes in checkpoints, derive from this class: list the classes in
    :attr:`classes` or override :meth:`matches`, and define :meth:`encode` and
    :meth:`decode`. Then call :func:`register_codec`, in the program that saves and in the
    program that loads.

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
    """The classes whose values the codec handles. Derived classes are not included."""

    def matches(self, value: object) -> bool:
        """Return whether the codec handles a value whose class is not in :attr:`classes`."""
        return False

    def encode(self, value: Value, path: Path, encoder: Encoder) -> dict[str, Any]:
        """Return the JSON fields of a value, without its kind.

        Args:
            value: the value.
            path: the keys that lead to the value.
            encoder: encodes nested values (:meth:`Encoder.encode`), and stores tensors.
        """
        raise NotImplementedError

    def decode(self, fields: Mapping[str, Any], decoder: Decoder) -> Any:
        """Return the value from the fields that :meth:`encode` has returned."""
        raise NotImplementedError


_NAMED: dict[str, Codec] = {}
_OF_CLASS: dict[type, Codec] = {}
_ORDER: list[Codec] = []


def register_codec(codec: Codec, *, is_last: bool = False) -> None:
    """Register a codec for checkpoints and messages.

    The codec is tried before the codecs registered earlier. Register it in each program that
    reads such values: a file never causes an import.

    Args:
        codec: the codec. It replaces a codec of the same name.
        is_last: whether to try the codec after the codecs registered earlier.

    Raises:
        ValueError: the codec has no name.
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
    """Return the codec that handles a value; None if there is none."""
    found = _OF_CLASS.get(type(value))
    if found is not None:
        return found
    return next((codec for codec in _ORDER if codec.matches(value)), None)


def codec_named(name: str) -> Codec | None:
    """Return the codec of a kind that a file names; None if none is registered."""
    return _NAMED.get(name)
