"""The format of collections on a wire: a head, a description, and one buffer with the leaves.

::

    message = describe(td)              # the message to send
    message.description                 # bytes: keys, classes, shapes, non-tensor data
    message.parts                       # the place of each leaf in a buffer of message.num_bytes

    parsed = parse(description)         # a description from a peer, checked
    td = parsed.collection(buffer)      # over a buffer of parsed.num_bytes

A description is the length of a JSON text, then the text: the description of a consolidated
collection that :mod:`tensordict.storage.describing` makes. Values that JSON cannot hold are encoded
as in checkpoints (:mod:`tensordict.storage.encoding`), and their tensors and arrays follow the text.
Nothing is unpickled, imported or called by a received name. Each received length is compared
with a limit before memory is allocated for it.
"""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from tensordict import _rust
from tensordict.primitives import classes
from tensordict.storage import describing, encoding, extra_metadata
from tensordict.storage.buffer import problem_of_row
from tensordict.storage.layouts import consolidated
from tensordict.storage.source import Source

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tensordict.primitives.protocol import CollectionProtocol

__all__ = [
    "FAILED",
    "HEAD_BYTES",
    "Head",
    "Message",
    "Parsed",
    "Run",
    "WireError",
    "content_of",
    "describe",
    "fill",
    "pack",
    "parse",
    "runs",
    "text_of",
]

MAX_DESCRIPTION_BYTES = 256 << 20
"""The longest description to receive. It has room for millions of leaves."""

MAX_ERROR_LENGTH = 8192
"""The most characters of an error that are sent to other processes."""

SMALL_BYTES = 256 << 10
"""Leaves below this size are packed together. Each larger leaf is sent without a copy."""

MSG_TYPE = (
    "Cannot send the entry {place}: it holds a {cls}, but only tensors, tensordicts and "
    "plain data (numbers, text, bytes, None, dicts, lists, tuples, sets, arrays) that is "
    "not nested too deep can be sent. Nothing is pickled for a peer: send the state of "
    "the object."
)
MSG_CLASS = (
    "The received entry {} is of the class {}, which this process does not know: import "
    "the module that defines it."
)
MSG_DAMAGED = "The received description of a tensordict is damaged: {}"
MSG_LIMIT = "A peer announces {what} of {found} bytes, more than the {limit} allowed."
MSG_SHORT = "The buffer of a tensordict has {found} bytes, but needs {needed}."
MSG_MAGIC = (
    "A peer has sent {found!r} instead of a head: the peer runs another program or version, "
    "or the message belongs to another transfer."
)


FAILED = 17
"""The kind of head of a process that cannot send. The text of an error follows."""

MSG_FAILED = "Rank {rank} could not take part: {text}"


class WireError(RuntimeError):
    """An error for invalid or incomplete bytes from a peer."""


# The head ---------------------------------------------------------------------------------

_HEAD = struct.Struct("<4sHHQQ24s16s")
HEAD_BYTES = _HEAD.size
MAGIC = b"TDw\x01"


class Head(NamedTuple):
    """The first message of a transfer, :data:`HEAD_BYTES` long."""

    kind: int
    """The kind of the message that follows: a constant of the module that sends it."""
    description_bytes: int
    """The length of the description, or of an error's text."""
    num_bytes: int
    """The length of the buffer."""
    digest: bytes = b""
    """The digest of a structure, at most 16 bytes."""
    extra: bytes = b""
    """At most 24 further bytes."""

    def to_bytes(self) -> bytes:
        """Return the head as bytes."""
        lengths = self.description_bytes, self.num_bytes
        return _HEAD.pack(MAGIC, self.kind, 0, *lengths, self.extra, self.digest)

    @classmethod
    def of(cls, content: bytes, max_bytes: int | None = None) -> Head:
        """Parse a head that was received.

        Args:
            content: the bytes.
            max_bytes: the longest buffer to accept. Default: no limit.

        Raises:
            WireError: the bytes are not a head, or announce more than is allowed.
        """
        if len(content) != HEAD_BYTES or content[:4] != MAGIC:
            raise WireError(MSG_MAGIC.format(found=bytes(content[:16])))
        _, kind, _, description, num_bytes, extra, digest = _HEAD.unpack(content)
        _check_length("a description", description, MAX_DESCRIPTION_BYTES)
        _check_length(
            "leaves", num_bytes, (1 << 62) if max_bytes is None else max_bytes
        )
        return cls(kind, description, num_bytes, digest, extra)


def _check_length(name: str, found: int, limit: int) -> None:
    if not 0 <= found <= limit:
        raise WireError(MSG_LIMIT.format(what=name, found=found, limit=limit))


def text_of(error: BaseException) -> bytes:
    """Return the text that follows a head of the kind :data:`FAILED`."""
    return f"{type(error).__name__}: {error}"[:MAX_ERROR_LENGTH].encode()


# Describing -------------------------------------------------------------------------------


class Message(NamedTuple):
    """A collection to send: its description and its leaves."""

    description: bytes
    parts: list[tuple[int, torch.Tensor]]
    """The start of each tensor in the buffer, in order, and the tensor. It may be on any device
    and not contiguous."""
    num_bytes: int
    """The length of the buffer. The bytes between the parts are padding."""


def describe(td: CollectionProtocol) -> Message:
    """Describe a collection of any class. Leaves are neither copied nor moved.

    The only part of a consolidated collection is its buffer.

    Raises:
        TypeError: an entry holds a value that can only be pickled.
        RuntimeError: a leaf cannot be consolidated.
    """
    state = consolidated.state_of(td)
    if state is not None:
        result, storage = td, state["storage"]
        level = describing.with_modules(state["metadata"], td)
        parts = [(0, storage)] if len(storage) else []
        num_bytes = len(storage)
    else:
        source = consolidated.described(td)
        result, level = source.result, source.with_modules
        starts = [row[2] for group in source.rows.rows for _, row in group]
        parts = list(zip(starts, source.rows.parts, strict=True))
        num_bytes = source.rows.num_bytes
    remarks = _SentRemarks()
    fields = {
        "level": describing.as_plain(result, level, (), remarks),
        "remarks": remarks.fields,
        "num_bytes": num_bytes,
    }
    tensors = remarks.encoder.tensors
    if not tensors:
        return Message(_joined(fields, b""), parts, num_bytes)
    rows, behind = {}, []
    start = 0
    for name, leaf in tensors.items():
        plain: Any = leaf
        content = plain.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        stop = start + len(content)
        rows[name] = [str(plain.dtype), list(plain.shape), start, stop, 0]
        behind.append(content.numpy().tobytes())
        start = stop
    fields["behind"] = rows
    return Message(_joined(fields, b"".join(behind)), parts, num_bytes)


def _joined(fields: dict[str, Any], behind: bytes) -> bytes:
    text = json.dumps(fields, separators=(",", ":")).encode()
    return struct.pack("<Q", len(text)) + text + behind


class _SentRemarks(extra_metadata.Remarks):
    """Remarks that encode values that JSON cannot hold."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = encoding.Encoder("the values")

    def class_name(self, level: dict[str, Any], path: tuple[str, ...]) -> str:
        """Return the name of a level's class; note parameters separately."""
        cls = level["cls"]
        if isinstance(cls, type) and issubclass(cls, torch.nn.Module):
            self._add("parameters", path)
            return "TensorDict"
        return super().class_name(level, path)

    def value(
        self, value: object, path: tuple[str, ...], kind: str, message: str
    ) -> Any:
        """Return a value in a form that JSON can hold."""
        try:
            return super().value(value, path, kind, message)
        except RuntimeError:
            pass
        try:
            encoded = self.encoder.encode(value, path)
        except (TypeError, RecursionError) as error:
            place, cls = describing.shown(path), type(value).__qualname__
            raise TypeError(MSG_TYPE.format(place=place, cls=cls)) from error
        self._add("encoded", path, encoded)
        if kind != "NonTensorData":
            self._add("kinds", path, kind)
        return None


# Reading ----------------------------------------------------------------------------------


class _ReceivedRemarks(extra_metadata.Remarks):
    """The remarks of a received description."""

    def __init__(self, fields: object, decoder: encoding.Decoder) -> None:
        super().__init__(fields)
        self.decoder = decoder

    def find_class(
        self,
        path: tuple[str, ...],
        name: str,
        requested: type | None,
        filename: str | Path | None,
    ) -> Any:
        """Return the class that a level names, if this process has imported it."""
        if self._of("parameters", path) is not None:
            return classes.TensorDictParams
        try:
            return super().find_class(path, name, requested, filename)
        except RuntimeError:
            raise WireError(MSG_CLASS.format(describing.shown(path), name)) from None

    def noted_value(self, value: object, path: tuple[str, ...]) -> Any:
        """Decode a value if it was encoded; otherwise return the value of the JSON."""
        found = self._of("encoded", path)
        if found is not None:
            return self.decoder.decode(found[0])
        return super().noted_value(value, path)


class Parsed:
    """A received description.

    Args:
        fields: the object of the JSON text.
        behind: the bytes after the JSON text.
    """

    def __init__(self, fields: dict[str, Any], behind: bytes) -> None:
        self.level: Any = fields["level"]
        self.num_bytes: int = fields["num_bytes"]
        tensors = {}
        content = torch.frombuffer(bytearray(behind or b"\0"), dtype=torch.uint8)
        for name, row in fields.get("behind", {}).items():
            problem = problem_of_row(row, len(behind))
            if problem:
                raise WireError(MSG_DAMAGED.format(problem))
            dtype, shape, start, stop, _ = row
            kind = getattr(torch, dtype.removeprefix("torch."))
            tensors[name] = content[start:stop].clone().view(kind).reshape(shape)
        decoder = encoding.Decoder(tensors, "a message")
        self._remarks = _ReceivedRemarks(fields["remarks"], decoder)

    def collection(
        self,
        buffer: torch.Tensor,
        device: torch.device | None = None,
        requested: type | None = None,
    ) -> Any:
        """Build the consolidated collection over a buffer. Its leaves are views of the buffer.

        Args:
            buffer: a ``uint8`` tensor of ``num_bytes`` elements.
            device: the device of each nested collection that has a device. The default is
                the device of the buffer.
            requested: a class to use if the sender's class has another name here.

        Raises:
            WireError: the buffer does not fit the description, or this process does not
                know a class.
        """
        if len(buffer) != self.num_bytes:
            message = MSG_SHORT.format(found=len(buffer), needed=self.num_bytes)
            raise WireError(message)
        place = torch.device(device or buffer.device)
        try:
            source = Source(buffer, self._remarks, None, requested)
            td = source.collection(self.level, ())
            for collection in _rust.containers(td):
                if collection.__dict__.get("_device") is not None:
                    collection._device = place
            return consolidated.marked(td, buffer, self.level)
        except WireError:
            raise
        except _DAMAGE as error:
            raise WireError(MSG_DAMAGED.format(error)) from error


_DAMAGE = (
    *(
        ArithmeticError,
        AssertionError,
        AttributeError,
        LookupError,
        NotImplementedError,
    ),
    *(RecursionError, RuntimeError, TypeError, ValueError),
)
"""The errors that invalid JSON can raise in the code that reads it."""


def parse(
    content: bytes, max_bytes: int | None = None, *, max_levels: int = 250
) -> Parsed:
    """Parse a received description.

    Args:
        content: the bytes.
        max_bytes: the longest buffer to accept. Default: no limit.
        max_levels: the number of levels to which collections may be nested.

    Raises:
        WireError: the description is damaged, or needs more than is allowed.
    """
    limit = (1 << 62) if max_bytes is None else max_bytes
    try:
        return _read(content, limit, max_levels)
    except WireError:
        raise
    except (*_DAMAGE, struct.error) as error:
        raise WireError(MSG_DAMAGED.format(error)) from None


def _read(content: bytes, limit: int, max_levels: int) -> Parsed:
    (length,) = struct.unpack_from("<Q", content)
    if length > len(content) - 8:
        raise WireError(MSG_DAMAGED.format("its end is missing."))
    fields = json.loads(content[8 : 8 + length])
    if type(fields["num_bytes"]) is not int:
        raise WireError(
            MSG_DAMAGED.format("it does not hold the length of the buffer.")
        )
    _check_length("leaves", fields["num_bytes"], limit)
    if _depth(fields["level"], max_levels) > max_levels:
        raise WireError(
            MSG_DAMAGED.format(f"it is nested in more than {max_levels} levels.")
        )
    return Parsed(fields, bytes(content[8 + length :]))


def _depth(level: Any, limit: int) -> int:
    """Return the number of nested levels, or a number above ``limit`` if there are more."""
    depth, levels = 0, [level]
    while levels and depth <= limit:
        depth += 1
        levels = [
            field
            for fields in levels
            for name, field in fields.items()
            if name not in describing.RESERVED and isinstance(field, dict)
        ]
    return depth


# Its buffer -------------------------------------------------------------------------------


class Run(NamedTuple):
    """A range of a buffer that is one message."""

    start: int
    stop: int
    parts: list[tuple[int, torch.Tensor]]


def runs(
    parts: list[tuple[int, torch.Tensor]], num_bytes: int, small: int = SMALL_BYTES
) -> Iterator[Run]:
    """Divide a buffer into runs: neighbouring small leaves together, each large leaf alone.

    The runs cover the whole buffer, padding included.
    """
    group: list[tuple[int, torch.Tensor]] = []
    begin = 0
    for start, part in parts:
        length = part.numel() * part.element_size()
        if length < small:
            group.append((start, part))
            continue
        if start > begin:
            yield Run(begin, start, group)
        yield Run(start, start + length, [(start, part)])
        group, begin = [], start + length
    if num_bytes > begin:
        yield Run(begin, num_bytes, group)


def pack(message: Message, out: torch.Tensor | None = None) -> torch.Tensor:
    """Copy the leaves of a message into one buffer, as consolidated collections have it.

    Args:
        message: the result of :func:`describe`.
        out: the ``uint8`` buffer. The default is a new buffer on the CPU. The buffer of a
            consolidated collection on the CPU is returned without a copy.
    """
    if out is None and len(message.parts) == 1:
        part = message.parts[0][1]
        if part.dtype == torch.uint8 and part.numel() == message.num_bytes:
            part = part.contiguous().view(-1)
            return part if part.device.type == "cpu" else part.cpu()
    target = torch.empty(message.num_bytes, dtype=torch.uint8) if out is None else out
    fill(target, 0, message.parts)
    return target


def fill(
    target: torch.Tensor, offset: int, parts: list[tuple[int, torch.Tensor]]
) -> None:
    """Copy parts into ``target``, whose first byte is the byte ``offset`` of the buffer."""
    end = 0
    views, sources = [], []
    for start, part in parts:
        begin = start - offset
        if begin > end:
            target[end:begin].zero_()
        end = begin + part.numel() * part.element_size()
        if not part.numel():
            continue
        if (target.storage_offset() + begin) % part.element_size():
            flat = part.contiguous().reshape(-1).view(torch.uint8)
            target[begin:end].copy_(flat)
            continue
        views.append(target[begin:end].view(part.dtype).view(part.shape))
        sources.append(part)
    if end < len(target):
        target[end:].zero_()
    if views:
        with torch.no_grad():
            torch._foreach_copy_(views, sources)


def content_of(part: torch.Tensor) -> memoryview:
    """Return the bytes of a tensor: a view if it is contiguous on the CPU, a copy otherwise."""
    plain = part.detach().resolve_conj().resolve_neg().cpu().contiguous()
    flat = plain.as_subclass(torch.Tensor).reshape(-1)
    if not flat.numel():
        return memoryview(b"")
    array: Any = flat.view(torch.uint8).numpy()
    return memoryview(array)
