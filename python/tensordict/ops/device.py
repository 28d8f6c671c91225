"""Devices: moves between them, and the device of a tensordict."""

from __future__ import annotations

from typing import Any, Self
from weakref import ref

import torch

from tensordict import _rust
from tensordict._rust import map_leaves
from tensordict.ops.families import cast_leaves, cast_of
from tensordict.primitives.common import mark_device
from tensordict.primitives.deprecation import warn_caller
from tensordict.primitives.dims import remember
from tensordict.primitives.errors import locked_error
from tensordict.primitives.protocol import CollectionProtocol
from tensordict.primitives.special import num_bytes
from tensordict.storage.layouts import consolidated

__all__ = ["DeviceOps", "normalize_device"]

MSG_SET_DEVICE = (
    "device cannot be set using tensordict.device = device, because device cannot be "
    "updated in-place. To update device, use tensordict.to(new_device), which will "
    "return a new tensordict on the new device. You can also use "
    "tensordict.to(new_device, inplace=True)."
)
MSG_COPY = ".to() does not accept copy argument"
MSG_NOT_CUDA = "Invalid device {}, must be a cuda device."
MSG_BATCH_SIZE = (
    "to() with a batch_size and a new device or dtype gives every nested tensordict "
    "exactly that batch size, turns nested lazy stacks into TensorDicts and erases the "
    "names. Starting with TensorDict 0.17, the default will change to setting the batch "
    "size as to(batch_size=...) does without a device, which keeps the nested batch "
    "sizes, lazy stacks and names. Call to(...) and then set the batch_size to have "
    "that now."
)
MSG_PIN_MEMORY_ = (
    "TensorDictBase.pin_memory_() is deprecated and will be removed in TensorDict 0.17. "
    "Use pin_memory(inplace=True) instead."
)


_CPU = torch.device("cpu")
_COMPLETE: dict[str | torch.device, torch.device] = {
    "cpu": _CPU,
    _CPU: _CPU,
    "meta": torch.device("meta"),
    torch.device("meta"): torch.device("meta"),
}
"""Device types with one device only, by name and as ``torch.device``."""


def normalize_device(device: Any) -> torch.device:
    """Return a ``torch.device`` with an index: by default that of the current device.

    A tensor on ``"cuda"`` reports ``cuda:0``. Without an index the two would compare
    unequal.
    """
    if isinstance(device, (str, torch.device)) and device in _COMPLETE:
        return _COMPLETE[device]
    device = torch.device(device)
    if device.index is None and device.type not in ("cpu", "meta"):
        module = getattr(torch, device.type, None)
        if module is not None and hasattr(module, "current_device"):
            return torch.device(device.type, module.current_device())
    return device


class DeviceOps(CollectionProtocol):
    """Devices.

    A tensordict may have a device. If it does, new entries are moved there; if not,
    entries may be on any device.
    """

    @property
    @_rust.call_natively
    def device(self) -> torch.device | None:
        """The device of every entry, or None if entries may be on any device.

        Read-only: use :meth:`to` to move.
        """
        return self._device

    @device.setter
    def device(self, value: Any) -> None:
        raise RuntimeError(MSG_SET_DEVICE)

    @property
    def is_cpu(self) -> bool:
        """Return whether the tensordict's device is the CPU; False without one."""
        device = self.device
        return device is not None and device.type == "cpu"

    @property
    def is_cuda(self) -> bool:
        """Return whether the tensordict's device is a GPU; False without one."""
        device = self.device
        return device is not None and device.type == "cuda"

    @property
    def is_meta(self) -> bool:
        """Return whether the tensordict's device is ``meta``; False without one."""
        device = self.device
        return device is not None and device.type == "meta"

    # Moving ----------------------------------------------------------------------

    def to(self, *args: object, **kwargs: Any) -> Self:
        """Move to a device, cast to a dtype, or both.

        Forms: ``to(device)``, ``to(dtype)``, ``to(device, dtype, non_blocking)``,
        ``to(tensor)`` (its device and dtype), ``to(tensordict)`` (its device),
        ``to(other=tensordict)`` (its device, and its dtype if all its leaves have the
        same one). Leaves that need no change are shared. If nothing changes, the result
        is this tensordict; a cast always makes a new one. Lock and names are kept.

        At the end of a ``with`` statement, changes of the result are written back.

        Args:
            *args: device and dtype, in one of these forms.
            **kwargs: ``device``, ``dtype``, ``memory_format`` and ``other`` by name,
                and

                - ``non_blocking``: True to return before the copies are complete.
                  Default: copies overlap, and are complete when the call returns.
                - ``non_blocking_pin``: copy the leaves to pinned memory first.
                - ``num_threads``: accepted for compatibility; torch copies in parallel.
                - ``inplace``: store the moved leaves in this tensordict and return it.
                - ``batch_size``: a new batch size.

        Raises:
            RuntimeError: ``inplace`` is True and the tensordict is locked; or ``copy``
                was passed.

        Examples:
            >>> td = TensorDict(a=torch.zeros(2), batch_size=[2])
            >>> td.to("meta").device
            device(type='meta')
            >>> td.to(torch.float64)["a"].dtype
            torch.float64
            >>> td.to("cpu").to("cpu").device
            device(type='cpu')
        """
        if len(args) == 1 and not kwargs:
            target = args[0]
            if isinstance(target, torch.dtype):
                method, given = cast_of(target)
                result = map_leaves(self, method, given, None, True, 0, True)
                result._last_op = ("to", args, kwargs, ref(self))
                return result
            if isinstance(target, (str, torch.device)):
                device = normalize_device(target)
                if device == self.device:
                    return remember(self, self, "to", args, kwargs)
                result = _transfer(self, device, None, None)
                return remember(self, result, "to", args, kwargs)
        return remember(self, self._to(*args, **kwargs), "to", args, kwargs)

    def _to(
        self,
        *args: Any,
        batch_size: object = None,
        other: Any = None,
        inplace: bool = False,
        non_blocking: bool | None = None,
        non_blocking_pin: bool = False,
        num_threads: int | None = None,
        **kwargs: Any,
    ) -> Self:
        """Do :meth:`to` without the bookkeeping for ``with`` statements."""
        has_other = len(args) > 0 and isinstance(args[0], CollectionProtocol)
        if has_other:
            other, *rest = args
            args = tuple(rest)
        if "copy" in kwargs or len(args) > 3:
            raise RuntimeError(MSG_COPY)
        if other is not None:
            if isinstance(other, torch.Tensor):
                args = (other, *args)
            elif other.device is not None:
                args = (other.device, *args)
        if len(args) > 1:
            args, kwargs = _by_name(args, kwargs)
        device, dtype, given, memory_format = torch._C._nn._parse_to(*args, **kwargs)
        if dtype is None and not has_other and isinstance(other, CollectionProtocol):
            dtype = other.dtype
        if device is not None:
            device = normalize_device(device)
        if given or non_blocking is None:
            non_blocking = True if given else None
        moves = device is not None and device != self.device
        if not moves and dtype is None and memory_format is None:
            if batch_size is not None:
                self.batch_size = batch_size
            if not has_other:
                return self
            result = _rust.rebuild(self, _rust.leaves(self), True, True)
            if other.device is None:
                _set_device(result, None)
            return result
        if (
            not (inplace or non_blocking_pin)
            and batch_size is None
            and memory_format is None
        ):
            return _transfer(self, device, dtype, non_blocking)
        if inplace and self.is_locked:
            raise locked_error(self)
        values = _rust.leaves(self)
        moved = _moved(
            values, device, dtype, memory_format, non_blocking, non_blocking_pin
        )
        if inplace:
            _replace_leaves(self, iter(moved), device)
            result = self
        else:
            result = _rust.rebuild(self, moved, True, batch_size is None and not moves)
            if moves:
                _set_device(result, device)
        if batch_size is not None:
            collections = _rust.containers(result)
            if len(collections) > 1 or self._td_dim_names is not None:
                warn_caller(MSG_BATCH_SIZE)
            for collection in collections:
                collection.names = None
                collection.batch_size = batch_size
        if not inplace and self.is_locked and not result.is_locked:
            _rust.lock_tree(result)
        return result

    def cpu(self, **kwargs: object) -> Self:
        """Move to the CPU. Takes the keyword arguments of :meth:`to`."""
        return self.to("cpu", **kwargs)

    def cuda(
        self, device: torch.device | str | int | None = None, **kwargs: object
    ) -> Self:
        """Move to a GPU.

        Args:
            device: a number, a name or a device. Default: the current GPU.
            **kwargs: keyword arguments of :meth:`to`.

        Raises:
            RuntimeError: ``device`` is no GPU.
        """
        if device is None:
            return self.to(torch.device("cuda"), **kwargs)
        if isinstance(device, int):
            return self.to(torch.device("cuda", device), **kwargs)
        if torch.device(device).type != "cuda":
            raise RuntimeError(MSG_NOT_CUDA.format(device))
        return self.to(device, **kwargs)

    def clear_device_(self) -> Self:
        """Remove the device, also from nested tensordicts, without moving a leaf."""
        for collection in _rust.containers(self):
            collection._clear_device()
        return self

    def auto_device_(self) -> Self:
        """Set the device to the one that all leaves share, or None, without a move.

        Examples:
            >>> td = TensorDict(a=torch.zeros(2))
            >>> td.device, td.auto_device_().device
            (None, device(type='cpu'))
        """
        devices = {leaf.device for leaf in _rust.leaves(self)}
        mark_device(self, devices.pop() if len(devices) == 1 else None)
        return self

    def _clear_device(self) -> None:
        """Remove the device of this tensordict alone."""
        self._device = None

    # Memory for transfers ------------------------------------------------------------

    def pin_memory(
        self,
        num_threads: int | None = None,
        inplace: bool = False,
    ) -> Self:
        """Copy the leaves to pinned memory, from which copies to a GPU can overlap.

        Args:
            num_threads: accepted for compatibility.
            inplace: replace the leaves of this tensordict and return it.

        Raises:
            RuntimeError: there is no accelerator; or ``inplace`` is True and the
                tensordict is locked.
        """
        if not inplace:
            return map_leaves(self, _pinned, (), None, True, 0, True)
        if self.is_locked:
            raise locked_error(self)
        _replace_leaves(
            self, iter([_pinned(leaf) for leaf in _rust.leaves(self)]), None
        )
        return self

    def pin_memory_(self, num_threads: int = 0) -> Self:
        """Pin the leaves' memory. Deprecated: use ``pin_memory(inplace=True)``."""
        warn_caller(MSG_PIN_MEMORY_, DeprecationWarning)
        return self.pin_memory(num_threads, inplace=True)

    def record_stream(self, stream: object) -> Self:
        """Call :meth:`torch.Tensor.record_stream` on every leaf.

        Args:
            stream: a ``torch.cuda.Stream``.
        """
        for leaf in _rust.leaves(self):
            leaf.record_stream(stream)
        return self

    def _sync_all(self) -> None:
        """Wait for the asynchronous copies of this process."""
        for module in (torch.cuda, torch.xpu):
            if module.is_initialized():
                module.synchronize()
        if torch.mps.is_available():
            torch.mps.synchronize()

    # Sizes, and plain tensors ------------------------------------------------------------

    def bytes(self, *, count_duplicates: bool = True) -> int:
        """Count the bytes of all elements.

        Args:
            count_duplicates: count a tensor at several keys several times.

        Examples:
            >>> TensorDict(a=torch.zeros(2), b=torch.zeros(3)).bytes()
            20
        """
        leaves = _rust.leaves(self)
        if not count_duplicates:
            leaves = list({id(leaf): leaf for leaf in leaves}.values())
        return sum(map(num_bytes, leaves))

    def as_tensor(self) -> Self:
        """Call ``as_tensor()`` on every leaf that has the method; share the others."""
        return map_leaves(self, _as_tensor, (), None, True, 0, True)


def _by_name(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of :meth:`to` by name where possible.

    The compiler can read them in this form. Arguments that torch refuses stay as they
    are.
    """
    first, *rest = args
    is_device = first is None or isinstance(first, (str, int, torch.device))
    names = ("dtype", "non_blocking") if is_device else ("non_blocking",)
    types = {"dtype": (torch.dtype, type(None)), "non_blocking": (bool,)}
    named = dict(zip(names, rest, strict=False))
    if (
        len(rest) > len(names)
        or any([name in kwargs for name in named])
        or not all([isinstance(value, types[name]) for name, value in named.items()])
    ):
        return args, kwargs
    if is_device:
        return (), {"device": first, **named, **kwargs}
    return (first,), {**named, **kwargs}


def _pinned(leaf: torch.Tensor) -> torch.Tensor:
    return leaf.pin_memory()


def _as_tensor(leaf: torch.Tensor) -> torch.Tensor:
    convert = getattr(leaf, "as_tensor", None)
    return leaf if convert is None else convert()


def _transfer(
    td: CollectionProtocol,
    device: torch.device | None,
    dtype: torch.dtype | None,
    non_blocking: bool | None,
) -> Any:
    """Return a copy of ``td`` on ``device`` and in ``dtype``; either may be None."""
    if device is None:
        return cast_leaves(td, dtype)  # type: ignore[arg-type]
    if dtype is None and td._consolidated is not None:
        moved = consolidated.moved(td, device, non_blocking)
        if moved is not None:
            return moved
    leaves = _rust.leaves(td)
    wait = non_blocking is None and _crosses(leaves, device)
    if wait or non_blocking:
        args: tuple[Any, ...] = (device, dtype, True)
    else:
        args = (device,) if dtype is None else (device, dtype)
    result = map_leaves(td, "to", args, None, True, 0, True)
    _set_device(result, device)
    if wait:
        _wait_for(leaves, device)
    return result


def _crosses(leaves: list[torch.Tensor], device: torch.device) -> bool:
    """Return whether a leaf moves between CPU and accelerator: copies can overlap."""
    if device == _CPU:
        return not _rust.on_host(leaves)
    if device.type == "meta":
        return False
    if device.type == "cpu":
        return not _rust.on_host(leaves)
    return any([leaf.is_cpu for leaf in leaves])


def _wait_for(leaves: list[torch.Tensor], device: torch.device) -> None:
    """Wait for the copies of ``leaves`` to ``device``."""
    for each in {device, *(leaf.device for leaf in leaves)}:
        if each.type not in ("cpu", "meta"):
            torch.accelerator.synchronize(each)


def _moved(
    leaves: list[torch.Tensor],
    device: torch.device | None,
    dtype: torch.dtype | None,
    memory_format: torch.memory_format | None,
    non_blocking: bool | None,
    pin: bool,
) -> list[torch.Tensor]:
    """Move and cast the leaves.

    If ``non_blocking`` is None, copies between the CPU and a device overlap, and one
    wait follows the last copy.
    """
    if pin:
        leaves = [leaf.pin_memory() for leaf in leaves]
    wait = non_blocking is None and device is not None and _crosses(leaves, device)
    options: dict[str, Any] = {"non_blocking": bool(non_blocking) or wait}
    if device is not None:
        options["device"] = device
    if dtype is not None:
        options["dtype"] = dtype
    out = []
    for leaf in leaves:
        if memory_format is not None and leaf.dim() in _DIMS_OF_FORMAT.get(
            memory_format, range(65)
        ):
            out.append(leaf.to(**options, memory_format=memory_format))
        else:
            out.append(leaf.to(**options))
    if wait and device is not None:
        _wait_for(leaves, device)
    return out


_DIMS_OF_FORMAT = {torch.channels_last: (4,), torch.channels_last_3d: (5,)}
"""The memory formats of images and volumes apply to leaves of this many dims only."""


def _set_device(td: CollectionProtocol, device: torch.device | None) -> None:
    """Set the device attribute of a new result to the device of its leaves."""
    for collection in _rust.containers(td):
        collection._device = device


def _replace_leaves(td: Any, values: Any, device: torch.device | None) -> None:
    """Replace the leaves of ``td`` in order, and set its device attribute."""
    for key, value in list(td._entries().items()):
        if isinstance(value, CollectionProtocol):
            _replace_leaves(value, values, device)
        else:
            td._set_entry(key, next(values))
    if device is not None:
        td._device = device
