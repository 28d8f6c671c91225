"""Saves of a tensorclass as a directory.

``meta.json`` contains only the name of the class; ``_tensordict/`` contains the
collection inside. In saves of early releases, ``meta.json`` has further keys, or there
is a file ``other.pickle``: non-tensor fields.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

from tensordict.primitives.errors import KeyMessageError
from tensordict.primitives.registry import type_text
from tensordict.storage.layouts.directory import load_directory
from tensordict.storage.restricted_pickle import read_pickle
from tensordict.tensorclass.making import around
from tensordict.tensorclass.methods import MethodsOfClass

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

    from tensordict.primitives.protocol import CollectionProtocol
    from tensordict.storage.paths import SavedPath

__all__ = ["FilesOfClass"]

_INNER = "_tensordict"
_OTHER = "other.pickle"

MSG_UNEXPECTED = "Key '{}' wasn't expected in the state-dict."


class FilesOfClass(MethodsOfClass):
    """The methods of a tensorclass for files, state dicts and consolidation."""

    def _save_plan(self, plan: Any, level: int) -> None:
        ((_, child_level, inner),) = plan.add_entries(level, {_INNER: self._tensordict})
        inner._save_plan(plan, child_level)
        fields = {"_type": type_text(type(self))}
        plan.close_level_as(level, json.dumps(fields))

    def _saved(self, leaves: Iterator[Any], directory: Any, inplace: bool) -> Self:
        child = None if directory is None else directory.child(_INNER)
        saved = self._tensordict._saved(leaves, child, inplace)
        return self if saved is self._tensordict else around(type(self), saved)

    @classmethod
    def _load_tree(cls, directory: SavedPath, options: Any) -> Self:
        further = json.loads((directory / "meta.json").read_text(encoding="utf-8"))
        further.pop("_type", None)
        pickled = directory / _OTHER
        if pickled.exists():
            further.update(read_pickle(pickled, options.allow_pickle))
        return cls._from_tensordict(
            load_directory(directory / _INNER, options), further
        )

    @classmethod
    def _asked_for(cls, loaded: CollectionProtocol) -> CollectionProtocol:
        # A save of the fields alone, such as at `saved_path`, does not name the class.
        inherits = cls.__declares_for_subclasses__ and cls.__expected_keys__
        if not loaded._is_dense or not inherits or cls._is_non_tensor:
            return loaded
        return cls.from_tensordict(loaded)

    def _take_loaded(self, loaded: CollectionProtocol) -> Any:
        if type(loaded) is not type(self):
            return loaded
        inner = self._tensordict._take_loaded(loaded._tensordict)
        return self if inner is self._tensordict else around(type(self), inner)

    def _shape_fields(self) -> dict[str, str | None]:
        return self._tensordict._shape_fields()

    def _level_to_grow(self, key: str, method: str) -> Any:
        inner = self._tensordict._level_to_grow(key, method)
        if inner._is_memmap and key not in self._field_names():
            raise self._no_such_field(key)
        return inner

    def memmap_refresh_(self, *, allow_pickle: bool | None = None) -> Self:
        """Reopen the files of the fields. See :meth:`TensorDict.memmap_refresh_`."""
        self._tensordict.memmap_refresh_(allow_pickle=allow_pickle)
        return self

    # State dicts ------------------------------------------------------------------

    def _stated(self) -> tuple[dict[str, Any], dict[str, Any]]:
        present = self._tensordict._entries()
        unset = (name for name in self._field_names() if name not in present)
        fields: dict[str, Any] = dict.fromkeys(unset)
        entries: dict[str, Any] = {}
        for name, entry in present.items():
            if getattr(entry, "_is_one", False):
                fields[name] = entry._value()
            else:
                entries[name] = entry
        return {"_type": type(self).__name__, "_non_tensor": fields}, entries

    def _state_values(
        self, values: Mapping[str, Any], fields: Mapping[str, Any], strict: bool
    ) -> dict[str, Any]:
        """Select the values of a state dict that can be loaded. Missing fields stay.

        See :meth:`TensorDict.load_state_dict`.

        Raises:
            KeyError: a key belongs to no field that is set.
        """
        present = self._tensordict._sample_entries()
        kept: dict[str, Any] = {}
        for name, value in values.items():
            entry = present.get(name)
            is_value = getattr(entry, "_is_non_tensor", False)
            if entry is not None and not (is_value and not isinstance(value, Mapping)):
                kept[name] = value
            elif strict and name not in fields:
                raise KeyMessageError(MSG_UNEXPECTED.format(name))
        for name, value in fields.items():
            if strict and name not in type(self).__expected_keys__:
                raise KeyMessageError(MSG_UNEXPECTED.format(name))
            if value is None and name in present:
                kept[name] = None
        return kept

    def _take_field(self, name: str, value: object, assign: bool) -> None:
        if name in type(self).__expected_keys__:
            super()._take_field(name, value, assign)

    # Consolidated -----------------------------------------------------------------

    def _describe(self, rows: Iterator[Any]) -> dict[Any, Any]:
        return {**self._tensordict._describe(rows), "cls": type(self)}

    def _described_child(self, name: str) -> Any:
        return self._tensordict._described_child(name)

    @classmethod
    def _from_description(cls, level: dict[str, Any], source: Any, path: Any) -> Self:
        return cls._from_tensordict(source.inner(level, path))

    def _put_leaves(self, leaves: Iterator[Any]) -> None:
        self._tensordict._put_leaves(leaves)

    def _consolidated_home(self) -> Any:
        return self._tensordict

    @property
    def _consolidated(self) -> dict[str, Any] | None:  # type: ignore[override]
        """The consolidated state of the collection inside."""
        return self._tensordict._consolidated

    def _to_level(self, writer: object, path: tuple[str, ...]) -> dict[str, Any]:
        level: dict[str, Any] = self._tensordict._to_level(writer, path)
        keys = level.pop("keys")
        return {**level, "class": type_text(type(self)), "keys": keys}

    @classmethod
    def _from_level(
        cls,
        level: dict[str, Any],
        reader: Any,
        path: str | os.PathLike[str],
        is_part: bool = False,
    ) -> Self:
        level = {name: value for name, value in level.items() if name != "class"}
        return cls._from_tensordict(reader.collection(level, path, is_part))
