"""Printing lazy stacks: first the entries of all members, then exclusive entries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tensordict.ops import display
from tensordict.primitives.checks import holds_values
from tensordict.primitives.lazy import members_with_more
from tensordict.primitives.protocol import CollectionProtocol

if TYPE_CHECKING:
    from tensordict.containers.lazy.stack import LazyStackedTensorDict

__all__ = ["compact", "long_parts"]


def exclusive_entries(
    td: LazyStackedTensorDict,
) -> list[tuple[int, list[tuple[str, Any]]]]:
    """Return the position of each member with exclusive entries, and these entries."""
    common = set(td._common_keys())
    out = []
    for position in members_with_more(td.tensordicts, len(common)):
        member = td.tensordicts[position]
        exclusive = [
            (key, value)
            for key, value in member._repr_entries()
            if key not in common and value is not None
        ]
        if exclusive:
            out.append((position, exclusive))
    return out


def long_parts(td: LazyStackedTensorDict, parts: list[str]) -> list[str]:
    """Return the lines of the long form, with exclusive fields and the stack dim."""
    options = display._options
    blocks = [
        f"        {position} ->\n"
        + ",\n".join(
            display._indented(f"{key}: {display._describe(value, options)}", 12)
            for key, value in exclusive
        )
        for position, exclusive in exclusive_entries(td)
    ]
    text = ",\n".join(blocks)
    exclusive = f"    exclusive_fields={{\n{text or '    '}}}"
    return [parts[0], exclusive, *parts[1:], f"    stack_dim={td.stack_dim}"]


def compact(td: LazyStackedTensorDict) -> str:
    """Return the short form, in one line if it is not too wide."""
    options = display._options
    head = ", ".join([*td._repr_head(), "fields={"])
    children = display._compact_children(td, options)
    name = type(td).__name__
    exclusive = exclusive_entries(td)
    if not exclusive:
        return display._layout(f"{name}({head}", children, "})", 0, 0)
    members = []
    for position, entries in exclusive:
        member = td.tensordicts[position]
        inner: list[Any] = []
        for key, value in entries:
            if holds_values(value):
                inner.append(f"{key}: {value._repr_short()}")
            elif isinstance(value, CollectionProtocol):
                opening = f"{key}: {display._nested_label(key, value, member)}{{"
                inner.append((opening, display._compact_children(value, options)))
            else:
                inner.append(f"{key}: {display._compact_leaf(value, member, options)}")
        members.append((f"{position}: {{", inner))
    opening = "exclusive_fields={"
    flat = ", ".join(map(display._flat, children))
    line = (
        f"{name}({head}{flat}}}, {opening}{', '.join(map(display._flat, members))}}})"
    )
    if len(line) <= display.LINE_WIDTH:
        return line
    fields = _broken(f"{name}({head}", children)
    tail = f"{opening}{', '.join(map(display._flat, members))}}})"
    if len(fields.rsplit("\n", 1)[-1]) + 2 + len(tail) <= display.LINE_WIDTH:
        return f"{fields}, {tail}"
    return f"{fields}, {_broken(opening, members, 2)})"


def _broken(opening: str, children: list[Any], tail: int = 3) -> str:
    """Print fields or members one in a line; the last has ``tail`` more characters."""
    if not children:
        return opening + "}"
    lines = []
    for position, child in enumerate(children, 1):
        if not isinstance(child, str):
            after = tail if position == len(children) else 1
            child = display._layout(child[0], child[1], "}", 4, after)
        lines.append("    " + child)
    return f"{opening}\n" + ",\n".join(lines) + "}"
