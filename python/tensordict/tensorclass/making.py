"""Instances around collections: of what an operation gives, of a pickle, of dictionaries."""

from __future__ import annotations

import copyreg
import dataclasses
import functools
from collections.abc import Iterable, Mapping
from typing import Any, Self

from tensordict import _rust
from tensordict.primitives.checks import is_tensorclass
from tensordict.primitives.common import value_of
from tensordict.primitives.protocol import NO_DEFAULT, CollectionProtocol
from tensordict.tensorclass.access import FieldAccess
from tensordict.tensorclass.casting import as_dicts
from tensordict.tensorclass.fields import post_init_arguments

__all__ = ["Making", "around"]

MSG_TWO_SIZES = "Cannot pass both batch_size and batch_dims to `from_dict`."
MSG_NO_COLLECTION = "Expected a TensorDictBase instance but got {}"
MSG_KEYS = (
    "Keys from the tensordict ({}) must correspond to the class attributes ({}). Got the "
    "set of keys {{{}}} which do not belong to the class."
)


_STAYING = (bool, int, float, complex, list)


def around(cls: Any, inner: object) -> Any:
    """An instance of ``cls`` around a collection that has no other keys than its fields."""
    made: Any = _rust.wrap_fields(cls, inner)
    if hasattr(cls, "__post_init__") and not cls._skip_post_init_on_rebuild:
        made.__post_init__(*_init_var_defaults(cls))
    return made


class Making(FieldAccess):
    """Ways to make an instance without a call of its class."""

    @classmethod
    def _from_tensordict(
        cls,
        tensordict: CollectionProtocol,
        non_tensordict: dict[str, Any] | None = None,
        safe: bool | None = True,
        *,
        rebuild: bool = True,
    ) -> Self:
        # `rebuild` is accepted for compatibility, as `safe` is.
        if not tensordict._is_dense:
            cls._check_keys(tensordict)
        if non_tensordict:
            cls._check_keys(non_tensordict)
        made = around(cls, tensordict)
        for name, value in (non_tensordict or {}).items():
            if value is not None:
                made._set_field_entry(name, value)
        return made

    @classmethod
    def _from_entries(
        cls,
        input_dict: Mapping[Any, Any],
        *,
        auto_batch_size: bool | None = None,
        batch_size: Any = None,
        batch_dims: int | None = None,
        **options: Any,
    ) -> Any:
        size = () if batch_size is None else batch_size
        if isinstance(size, Iterable):
            is_known = batch_size is not None or not (auto_batch_size or batch_dims)
            input_dict = cls._with_values(input_dict, tuple(size) if is_known else None)
        return super()._from_entries(
            input_dict,
            auto_batch_size=auto_batch_size,
            batch_size=batch_size,
            batch_dims=batch_dims,
            **options,
        )

    @classmethod
    def _with_dicts(cls, source: object) -> Any:
        """A mapping for a class of tensors alone: nested mappings are dictionaries."""
        return as_dicts(source) if cls._tensor_only else source

    @classmethod
    def _with_values(cls, source: object, size: object) -> Any:
        """A mapping whose numbers and lists are values where the annotations say so.

        Args:
            source: the mapping. Any other value is given back.
            size: the batch size of what they are set in; None where it is not known yet.
        """
        if isinstance(source, CollectionProtocol) or not isinstance(source, Mapping):
            return source
        if cls._tensor_only:
            return as_dicts(source)
        if cls._nocast:
            return source
        changed = {}
        known: Any = () if size is None else size
        kinds = (bool, int, float, complex) if size is None else _STAYING
        for name, value in source.items():
            if isinstance(value, kinds) and cls._stays(name, value, known):
                hint = cls._type_hints[name]
                if cls._autocast and isinstance(hint, type):
                    value = value if type(value) is hint else hint(value)
                changed[name] = cls._non_tensor_type(value, batch_size=known)
        return {**source, **changed} if changed else source

    @classmethod
    def _from_plain(cls, made: Any, source: object = None) -> Self:
        if isinstance(made, cls):
            return made
        given = source if isinstance(source, Mapping) else {}
        for key, value in list(made._entries().items()):
            if (
                getattr(value, "_is_non_tensor", False)
                and value._value() is None
                # A value that was given as one stays, as the release has it.
                and not isinstance(given.get(key), CollectionProtocol)
            ):
                cls._check_keys({key: value})
                made._del_entry(key)
        return cls.from_tensordict(made)

    def from_dict_instance(
        self,
        input_dict: Any,
        *,
        auto_batch_size: bool | None = None,
        batch_size: object = None,
        device: object = None,
        batch_dims: int | None = None,
        names: object = None,
    ) -> Self:
        """An instance of nested dictionaries, by a call of the class.

        See :meth:`TensorDict.from_dict_instance`.

        Raises:
            AttributeError: an entry is no field.
            TypeError: a field without a default is missing.
        """
        if batch_size is not None and batch_dims is not None:
            raise ValueError(MSG_TWO_SIZES)
        values: dict[str, Any] = {}
        below: dict[str, Any] = {}
        for key, value in list(input_dict.items()):
            if isinstance(input_dict, CollectionProtocol):
                value = value_of(value)
            name, *rest = _rust.unravel_key_to_tuple(key)
            if rest:
                below.setdefault(name, {})[tuple(rest)] = value
            else:
                values[name] = self._like_present(name, value, batch_size, device)
        for name, value in below.items():
            values[name] = self._plain_type.from_dict(
                value, batch_size=batch_size, device=device
            )
        cls: Any = type(self)
        own = {} if names is None else {"names": names}
        made: Self = cls(**values, batch_size=batch_size, device=device, **own)
        if batch_size is None and (auto_batch_size or batch_dims is not None):
            made.auto_batch_size_(batch_dims)
        return made

    def _like_present(
        self, name: str, value: object, batch_size: object, device: object
    ) -> Any:
        """Convert what a dictionary has for a field to the kind of what is held there.

        A plain collection is one for a field that holds a tensorclass.
        """
        if not isinstance(value, Mapping) or isinstance(value, Making):
            return value
        present = self._get_entry(name, None)
        if isinstance(value, CollectionProtocol) and not isinstance(present, Making):
            return value
        if present is None:
            present = self._make_child()
        return present.from_dict_instance(value, batch_size=batch_size, device=device)

    @classmethod
    def _check_keys(cls, entries: Any) -> None:
        """Raise where an entry is no field.

        Of a dense collection :func:`wrap_fields` looks at the keys, and calls this
        where they are not all fields.
        """
        expected = cls.__expected_keys__
        keys = {key if isinstance(key, str) else key[0] for key in entries.keys()}  # noqa: SIM118 - a collection's own
        if not keys <= expected:
            raise ValueError(MSG_KEYS.format(keys, expected, keys - expected))

    def _check_mapping(self, source: object) -> None:
        if isinstance(source, Mapping) and not isinstance(source, CollectionProtocol):
            self._check_keys(source)

    @classmethod
    def from_tensordict(
        cls,
        tensordict: CollectionProtocol,
        non_tensordict: dict[str, Any] | None = None,
        safe: bool | None = None,
    ) -> Self:
        """Make an instance around a collection, which is not copied.

        Args:
            tensordict: a collection whose keys are fields. Fields that it lacks are None.
            non_tensordict: further fields, of any values.
            safe: accepted for compatibility: keys are always checked.

        Raises:
            RuntimeError: ``tensordict`` is no collection.
            ValueError: a key is no field.

        Examples:
            >>> class Data(TensorClass):
            ...     a: torch.Tensor
            >>> Data.from_tensordict(TensorDict(a=torch.zeros(3), batch_size=[3])).a.shape
            torch.Size([3])
        """
        if not isinstance(tensordict, CollectionProtocol):
            raise RuntimeError(MSG_NO_COLLECTION.format(type(tensordict)))
        return cls._from_tensordict(_with_classes(cls, tensordict), non_tensordict)

    def _update_source(self, source: object) -> Any:
        """A mapping with what it holds for fields that are not set as their classes."""
        if isinstance(source, CollectionProtocol) or not isinstance(source, Mapping):
            return source
        changed: dict[str, Any] = {}
        for name, nested in type(self)._tensorclass_fields.items():
            value = source.get(name)
            is_set = self._get_entry(name, NO_DEFAULT) is not NO_DEFAULT
            if not is_set and _fits(nested, value):
                if isinstance(value, dict):
                    value = self._make_child().update(value)
                changed[name] = nested.from_tensordict(value)
        return {**source, **changed} if changed else source

    def __getstate__(self) -> dict[str, Any]:
        """The collection inside, under the names that tensordict 0.15 reads."""
        return {"tensordict": self._tensordict, "non_tensordict": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take the state of a pickle, ours or one of tensordict 0.15."""
        object.__setattr__(self, "_tensordict", state["tensordict"])
        object.__setattr__(self, "_non_tensordict", {})
        object.__setattr__(self, "_is_initialized", True)
        for name, value in (state.get("non_tensordict") or {}).items():
            if value is not None:
                self._set_field_entry(name, value)

    def __reduce_ex__(self, protocol: object) -> tuple[Any, ...]:
        return copyreg.__newobj__, (type(self),), self.__getstate__()  # type: ignore[attr-defined]


def _fits(cls: Any, value: object) -> bool:
    """Return whether a plain collection or dictionary can become a tensorclass."""
    if is_tensorclass(value) or not isinstance(value, (CollectionProtocol, dict)):
        return False
    keys = value if isinstance(value, dict) else value._sample_entries()
    return cls.__expected_keys__.issuperset(keys)


def _with_classes(cls: Any, td: Any) -> Any:
    """``td`` with what is nested in it as the tensorclasses that the fields name."""
    changed: dict[str, Any] = {}
    for name, nested in cls._tensorclass_fields.items():
        value = td._get_entry(name, NO_DEFAULT)
        if _fits(nested, value):
            changed[name] = nested.from_tensordict(value)
    if not changed:
        return td
    td = td.copy()
    for name, value in changed.items():
        td._set_entry(name, value)
    return td


@functools.lru_cache(maxsize=256)
def _init_var_defaults(cls: type) -> tuple[Any, ...]:
    """Return what a rebuilt instance passes to ``__post_init__``: the defaults."""
    defaults = post_init_arguments(cls).values()
    return tuple(value for value in defaults if value is not dataclasses.MISSING)
