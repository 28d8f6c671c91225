"""One value in files, pickles and state dicts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from tensordict import _rust
from tensordict.containers.nontensor.base import NonTensorOps
from tensordict.storage import describing, safe_pickle, safetensors_levels
from tensordict.storage.append import MSG_CANNOT

if TYPE_CHECKING:
    import torch

    from tensordict.storage.paths import SavedPath

__all__ = ["DataFiles"]


class DataFiles(NonTensorOps):
    """The files and pickles of a :class:`NonTensorDataBase`."""

    _metadata: Any = None
    _at: int

    def _save_plan(self, plan: Any, level: int) -> None:
        safe_pickle.plan_value(self, plan, level)

    @classmethod
    def _load_tree(cls, directory: SavedPath, options: Any) -> Self:
        return safe_pickle.load_value(cls, directory, options)

    def _take_loaded(self, loaded: Any) -> Any:
        if type(loaded) is not type(self):
            return loaded
        # Cells of its own: copies of this collection keep their value.
        self._cells, self._at = [loaded.data], 0
        self._metadata = loaded._metadata
        self._memmap_prefix = loaded._memmap_prefix
        return self

    def _level_to_grow(self, key: str, method: str) -> Any:
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
        """An empty dense container of the same size: what tensordict 0.15 keeps here."""
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
        """The state in the form that tensordict 0.15 reads."""
        td = self._tensordict
        if self.is_locked:
            td.lock_()
        state = {"tensordict": td, "non_tensordict": self._non_tensordict}
        if self._has_files():
            state["_memmap_prefix"] = self._memmap_prefix
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take the state of a pickle, ours or one of tensordict 0.15."""
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

    def _put_leaves(self, leaves: Any) -> None:
        """Do nothing: there are none."""

    def _to_level(self, writer: Any, path: tuple[str, ...]) -> dict[str, Any]:
        raise TypeError(safetensors_levels.MSG_ALONE)

    def _to_entry(self, writer: Any, path: tuple[str, ...]) -> dict[str, Any]:
        entry: dict[str, Any] = writer.value(self.data, path, type(self).__name__)
        return entry
