"""Parsing of the ``repr`` of a tensordict, in the long and the short form."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import torch

from tensordict.primitives import classes

if TYPE_CHECKING:
    from tensordict.primitives.protocol import CollectionProtocol

__all__ = ["parse"]

_DIMS = r"\[(?P<dims>[\d, ]*)\]"
_DEVICE = r"(?P<device>[a-z]+(?::\d+)?|None)"
_SHORT_LEAF = re.compile(
    rf"(?P<key>.+?): (?P<dtype>bool|(?:bf|[fiuc])\d+\w*){_DIMS}(?:@{_DEVICE})?(?=[,}}])"
)
_SHORT_NODE = re.compile(rf"(?P<key>.+?): \w*(?:{_DIMS})?(?:@{_DEVICE})?\{{")
_SHORT_ROOT = re.compile(
    rf"\w+\(batch_size={_DIMS}(?:, device={_DEVICE})?(?:, [^{{]*?)?, fields=\{{"
)
_LONG_LEAF = re.compile(
    rf"(?P<key>.+?): \w*(?:Tensor|Parameter|Buffer)\(shape=torch\.Size\({_DIMS}\), "
    rf"device={_DEVICE}, dtype=torch\.(?P<dtype>\w+), is_shared=\w+\)(?=[,}}])"
)
_LONG_NODE = re.compile(r"(?P<key>.+?): \w+\(\s*fields=\{")
_LONG_ROOT = re.compile(r"\w+\(\s*fields=\{")
_LONG_END = re.compile(
    rf"\}},\s*batch_size=torch\.Size\({_DIMS}\),\s*device={_DEVICE},\s*is_shared=\w+\)"
)
_LONG_KINDS = {"bf": "bfloat", "f": "float", "i": "int", "u": "uint", "c": "complex"}

MSG_NO_SIZE = "Batch size not found in the string"
MSG_FIELD = (
    "Cannot parse the field {!r}: parse_tensor_dict_string reads Tensor and TensorDict "
    "fields printed with the default print options."
)


def parse(text: str) -> CollectionProtocol:
    """Make a tensordict of zeros with the structure that ``text`` shows."""
    text = text.strip()
    if match := _SHORT_ROOT.match(text):
        return _Reader(text).short(match, torch.Size([]), None)[0]
    if match := _LONG_ROOT.match(text):
        return _Reader(text).long(match.end())[0]
    raise ValueError(MSG_NO_SIZE)


class _Reader:
    """A parser of one text. Methods take and return positions in it."""

    def __init__(self, text: str) -> None:
        self.text = text

    def skip(self, at: int) -> int:
        """Return the position of the next character that is no separator."""
        while at < len(self.text) and self.text[at] in " \n\t,":
            at += 1
        return at

    def fail(self, at: int) -> ValueError:
        return ValueError(MSG_FIELD.format(self.text[at:].splitlines()[0][:60]))

    def short(
        self, match: re.Match[str], size: torch.Size, device: torch.device | None
    ) -> tuple[Any, int]:
        """Parse a nested tensordict of the short form, in which shapes are relative."""
        size = torch.Size([*size, *_dims(match)])
        device = _device(match) or device
        entries: dict[str, Any] = {}
        at = self.skip(match.end())
        while self.text[at : at + 1] != "}":
            leaf = _SHORT_LEAF.match(self.text, at)
            node = _SHORT_NODE.match(self.text, at)
            if leaf and (node is None or leaf.end("key") <= node.end("key")):
                shape = [*size, *_dims(leaf)]
                place = _device(leaf) or device
                dtype = _long_dtype(leaf["dtype"])
                entries[leaf["key"]] = torch.zeros(shape, dtype=dtype, device=place)
                at = leaf.end()
            elif node:
                entries[node["key"]], at = self.short(node, size, device)
            else:
                raise self.fail(at)
            at = self.skip(at)
        return classes.TensorDict(entries, size, device=device), at + 1

    def long(self, at: int) -> tuple[Any, int]:
        """Parse a tensordict of the long form, from the start of its fields."""
        entries: dict[str, Any] = {}
        at = self.skip(at)
        while self.text[at : at + 1] != "}":
            leaf = _LONG_LEAF.match(self.text, at)
            node = _LONG_NODE.match(self.text, at)
            if leaf and (node is None or leaf.end("key") <= node.end("key")):
                entries[leaf["key"]] = torch.zeros(
                    _dims(leaf),
                    dtype=getattr(torch, leaf["dtype"]),
                    device=_device(leaf),
                )
                at = leaf.end()
            elif node:
                entries[node["key"]], at = self.long(node.end())
            else:
                raise self.fail(at)
            at = self.skip(at)
        end = _LONG_END.match(self.text, at)
        if end is None:
            raise ValueError(MSG_NO_SIZE)
        size, device = torch.Size(_dims(end)), _device(end)
        return classes.TensorDict(entries, size, device=device), end.end()


def _dims(match: re.Match[str]) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", match["dims"] or "")]


def _device(match: re.Match[str]) -> torch.device | None:
    name = match["device"]
    return None if name in (None, "None") else torch.device(name)


def _long_dtype(name: str) -> torch.dtype:
    dtype: torch.dtype
    if name == "bool":
        return torch.bool
    letters = "bf" if name.startswith("bf") else name[0]
    dtype = getattr(torch, _LONG_KINDS[letters] + name[len(letters) :])
    return dtype
