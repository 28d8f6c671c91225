"""Non-tensor data in files, pickles and state dicts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import torch

from tensordict import _rust
from tensordict.containers.nontensor.base import NonTensorOps
from tensordict.primitives import options
from tensordict.primitives.protocol import CollectionProtocol
from tensordict.storage import describing, safe_pickle
from tensordict.storage import source as sources
from tensordict.storage.append import MSG_CANNOT

if TYPE_CHECKING:
    from typing import NoReturn

    from tensordict.containers.nontensor.positions import Layout
    from tensordict.storage.paths import SavedPath

__all__ = ["DataFiles", "StackFiles"]


class DataFiles(NonTensorOps):
    """The methods of :class:`NonTensorDataBase` for files and pickles."""

    _metadata: Any = None
    _at: int

    def _save_plan(self, plan: Any, level: int) -> None:
        safe_pickle.plan_value(self, plan, level)

    @classmethod
    def _load_tree(cls, directory: SavedPath, options: Any) -> Self:
        return safe_pickle.load_value(cls, directory, options)

    def _take_loaded(self, loaded: object) -> Any:
        if type(loaded) is not type(self):
            return loaded
        # New cells: collections that share the old cells keep their value.
        self._cells, self._at = [loaded.data], 0
        self._metadata = loaded._metadata
        self._memmap_prefix = loaded._memmap_prefix
        return self

    def _level_to_grow(self, key: str, method: str) -> NoReturn:
        raise RuntimeError(MSG_CANNOT.format(method, type(self).__name__))

    def _loaded_in(
        self,
        size: torch.Size,
        device: torch.device | None,
        names: list[str | None] | None,
    ) -> Self:
        if not self._batch_size:
            self._batch_size = size
        return super()._loaded_in(size, device, names)

    @property
    def _tensordict(self) -> Any:  # type: ignore[override]
        """An empty dense collection of this size, which tensordict 0.15 keeps here."""
        names = self._td_dim_names
        return _rust.new(
            self._plain_type,
            {},
            self._batch_size,
            self._device,
            None if names is None else list(names),
        )

    @property
    def _non_tensordict(self) -> dict[str, Any]:
        return {
            "data": self.data,
            "_metadata": self._metadata,
            "_is_non_tensor": True,
        }

    def __getstate__(self) -> dict[str, Any]:
        """Return the state in a form that tensordict 0.15 can read, too."""
        td = self._tensordict
        if self.is_locked:
            td.lock_()
        state = {"tensordict": td, "non_tensordict": self._non_tensordict}
        if self._has_files():
            state["_memmap_prefix"] = self._memmap_prefix
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a pickled state, also one of the published tensordict 0.15."""
        td, fields = state["tensordict"], state["non_tensordict"]
        self._cells = [fields["data"]]
        self._at = 0
        self._batch_size = td.batch_size
        self._device = td.device
        self._td_dim_names = td._td_dim_names
        if fields.get("_metadata") is not None:
            self._metadata = fields["_metadata"]
        if td.is_locked:
            self._lock_tree()
        if state.get("_memmap_prefix") is not None:
            self._is_memmap = True
            self._memmap_prefix = state["_memmap_prefix"]

    # Files of one buffer, and safetensors ---------------------------------------------

    def _describe(self, rows: Any) -> Any:
        device = None if self._device is None else str(self._device)
        return describing.Value((self.data, list(self._batch_size), device))

    @classmethod
    def _from_description(cls, level: dict[str, Any], source: Any, path: Any) -> Any:
        return source.value(level["non_tensors"]["data"], (*path, "data"))

    def _described_child(self, name: str) -> Self:
        return self

    def _to_entry(self, writer: Any, path: tuple[str, ...]) -> dict[str, Any]:
        entry: dict[str, Any] = writer.value(self.data, path, type(self).__name__)
        return entry


class StackFiles(NonTensorOps):
    """The methods of :class:`NonTensorStack` for files and pickles."""

    if TYPE_CHECKING:
        stack_dim: int
        tensordicts: list[Any]
        _layout: Layout | None
        _member_class: type[Any]

        @classmethod
        def _of_cells(cls, cells: list[Any], batch_size: torch.Size) -> Any: ...
        def _become(self, source: Any) -> None: ...
        def _take(self, other: object) -> None: ...

    def _save_plan(self, plan: Any, level: int) -> None:
        safe_pickle.plan_column(self, plan, level)

    @classmethod
    def _load_tree(cls, directory: SavedPath, options: Any) -> Any:
        return safe_pickle.load_column(cls, directory, options)

    def _take_loaded(self, loaded: object) -> Any:
        if type(loaded) is not type(self) or loaded.batch_size != self.batch_size:
            return loaded
        self._take(loaded)
        self._memmap_prefix = loaded._memmap_prefix
        return self

    # Files of one buffer, and safetensors ---------------------------------------------

    def _describe(self, rows: Any) -> Any:
        dim = self.stack_dim
        if len(self._batch_size) == 1 and self._is_plain_column():
            device = None if self._device is None else str(self._device)
            level = describing.describe_stack("NonTensorStack", [], 0, None, rows)
            level["non_tensors"] = {
                str(number): describing.Value((value, [], device))
                for number, value in enumerate(self._flat())
            }
            return level
        return describing.describe_stack(
            "NonTensorStack", self.tensordicts, dim, None, rows
        )

    def _is_plain_column(self) -> bool:
        """Return whether each value can be stored as a plain member."""
        return (
            type(self) is self._non_tensor_stack_type
            and self._member_class is self._non_tensor_type
            and not any(
                issubclass(kind, CollectionProtocol)
                for kind in set(map(type, self._flat()))
            )
        )

    def _described_child(self, name: str) -> Any:
        return self.tensordicts[int(name)]

    @classmethod
    def _from_description(
        cls, level: dict[str, Any], source: Any, path: Any
    ) -> CollectionProtocol:
        fields = level["cls_metadata"]
        values = sources.column_of(level, source)
        if values is not None and not options.capture_non_tensor_stack():
            size = torch.Size([len(values)])
            return sources.locked_as(cls._of_cells(values, size), fields)
        members = sources.members_of(level, source, path)
        stack = members[0]._stack_lazily(members, fields["stack_dim"], None)
        return sources.locked_as(stack, fields)

    def _to_entry(self, writer: Any, path: tuple[str, ...]) -> dict[str, Any]:
        if writer.takes_columns:
            entry: dict[str, Any] = writer.column(self, path)
            return entry
        raise TypeError(
            f"Cannot save the non-tensor stack at {path} as safetensors: only single "
            "JSON values are supported."
        )

    def __reduce_ex__(
        self, protocol: Any
    ) -> (
        tuple[Any, tuple[list[Any], torch.Size, torch.device | None]]
        | tuple[Any, tuple[Any, ...]]
        | tuple[Any, tuple[()], dict[str, Any]]
    ):
        """Pickle as a call of the class, which tensordict 0.15 can read, too."""
        if self._layout is None and getattr(self._cells, "is_elsewhere", False):
            arguments = self._cells, self._batch_size, self._device
            return self._non_tensor_stack_type._of_cells, arguments
        is_plain = (
            self._device is None
            and self._td_dim_names is None
            and not self._is_locked
            and not self._has_files()
            and not self.stack_dim
            and len(self._batch_size) == 1
        )
        # As an argument, a collection would become a member instead of a value.
        if is_plain and self._is_plain_column():
            return self._non_tensor_stack_type, tuple(self._flat())
        return self._non_tensor_stack_type, (), self.__getstate__()

    def __getstate__(self) -> dict[str, Any]:
        """Return the state in a form that tensordict 0.15 can read, too."""
        state: dict[str, Any] = {
            "_is_locked": self._is_locked or None,
            "stack_dim": self.stack_dim,
            "_batch_size": self._batch_size,
            "tensordicts": self.tensordicts,
            "_hook_out": None,
            "_hook_in": None,
        }
        names = self._td_dim_names
        if names is not None:
            state["_td_dim_name"] = names[self.stack_dim]
        if self._has_files():
            state["_memmap_prefix"] = self._memmap_prefix
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a pickled state, also one of the published tensordict 0.15."""
        dim, size = state.get("stack_dim", 0), state.get("_batch_size")
        members = state["tensordicts"]
        if size is not None and not size.numel() and not members:
            # Without members, only the recorded size has the other dims.
            self._cells, self._layout, self._batch_size = [], None, size
            self.stack_dim = dim
        else:
            self._become(self._non_tensor_stack_type(*members, stack_dim=dim))
        name = state.get("_td_dim_name")
        if name is not None:
            names = self._td_dim_names or [None] * len(self._batch_size)
            self._named([*names[:dim], name, *names[dim + 1 :]])
        if state.get("_is_locked"):
            self._lock_tree()
        if state.get("_memmap_prefix") is not None:
            self._is_memmap = True
            self._memmap_prefix = state["_memmap_prefix"]
