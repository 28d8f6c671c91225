"""A lazy stack as a directory: a subdirectory for each member, ``0``, ``1``, and so on.

tensordict 0.15 counts these directories, and so loads members of an older, longer stack as well.
Here ``meta.json`` holds the number of members, in a field that tensordict 0.15 ignores. If the field
is missing, the directories are counted.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import torch

from tensordict.primitives import registry

if TYPE_CHECKING:
    from tensordict._rust import SavedTensors
    from tensordict.primitives.protocol import CollectionProtocol
    from tensordict.storage.paths import SavedPath

__all__ = ["load_members", "load_stack", "plan_stack", "saved_stack", "take_loaded"]

MSG_EMPTY = "A lazy stack without members cannot be saved: it has no dtypes and shapes."
MSG_NO_STACK = "{} has no valid stack_dim: {!r}."
MSG_MISSING = "The directory {} of a member of a lazy stack is missing."
MSG_COUNT = "The lazy stack has {} members, but its directory has {}."


def plan_stack(stack: Any, plan: Any, level: int) -> None:
    """Add a lazy stack to a level of a plan.

    Raises:
        RuntimeError: the stack has no members.
    """
    members = stack.tensordicts
    if not members:
        raise RuntimeError(MSG_EMPTY)
    members_by_name = {str(at): member for at, member in enumerate(members)}
    for _, child_level, member in plan.add_entries(level, members_by_name):
        member._save_plan(plan, child_level)
    cls = type(stack)
    fields = {
        "_type": registry.type_text(cls),
        "_format_version": 1,
        "_class": registry.class_text(cls),
        "stack_dim": stack.stack_dim,
        "stack_dim_name": stack._td_dim_name,
        "_num_members": len(members),
    }
    plan.close_level_as(level, json.dumps(fields))


def saved_stack(stack: Any, leaves: SavedTensors, directory: Any, inplace: bool) -> Any:
    """Return the stack of the saved members: ``stack`` itself, or a new one."""
    members = []
    for at, member in enumerate(stack.tensordicts):
        child = None if directory is None else directory.child(str(at))
        members.append(member._saved(leaves, child, inplace))
    saved = stack
    if inplace:
        stack.tensordicts[:] = members
    else:
        saved = stack._like(members)
    saved._is_memmap = True
    saved._is_shared = False
    saved._is_locked = True
    saved._memmap_prefix = None if directory is None else directory.path
    saved._last_op = None
    return saved


def load_stack(cls: Any, path: SavedPath, options: Any) -> CollectionProtocol:
    """Load the lazy stack in a directory. See :func:`load_members`."""
    members, dim, name = load_members(path, options)
    loaded = cls._of(members, dim, name)
    loaded._memmap_prefix = options.home_of(path)
    return loaded


def load_members(path: SavedPath, options: Any) -> tuple[list[Any], int, str | None]:
    """Load the members of the lazy stack in a directory.

    Returns:
        The members, the stack dimension and its name.

    Raises:
        ValueError: the metadata has no valid stack dimension.
        FileNotFoundError: a member is missing.
    """
    from tensordict.storage.layouts.directory import load_directory

    fields = json.loads((path / "meta.json").read_text(encoding="utf-8"))
    try:
        dim = int(fields["stack_dim"])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(MSG_NO_STACK.format(path / "meta.json", error)) from error
    count = fields.get("_num_members")
    if count is None:
        count = 0
        while (path / str(count) / "meta.json").exists():
            count += 1
        if not count:
            raise FileNotFoundError(MSG_MISSING.format(path / "0"))
    rest = None
    if options.size is not None:
        rest = torch.Size([*options.size[:dim], *options.size[dim + 1 :]])
    inner = options._replace(size=rest)
    members = []
    for at in range(count):
        directory = path / str(at)
        if not (directory / "meta.json").exists():
            raise FileNotFoundError(MSG_MISSING.format(directory))
        member = load_directory(directory, inner)
        members.append(member if rest is None else member._loaded_in(rest, None, None))
    return members, dim, fields.get("stack_dim_name")


def take_loaded(stack: Any, loaded: Any) -> Any:
    """Replace the entries of each member by the loaded entries.

    Raises:
        RuntimeError: the numbers of members differ.
    """
    from tensordict.storage.take_loaded import load_into

    members, loaded_members = stack.tensordicts, list(loaded.unbind(stack.stack_dim))
    if len(members) != len(loaded_members):
        raise RuntimeError(MSG_COUNT.format(len(members), len(loaded_members)))
    stack.tensordicts[:] = [
        load_into(member, loaded_member)
        for member, loaded_member in zip(members, loaded_members, strict=True)
    ]
    stack._memmap_prefix = loaded._memmap_prefix
    return stack
