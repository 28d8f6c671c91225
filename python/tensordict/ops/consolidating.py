"""All leaves in one buffer: in a file, shared memory, pinned memory or on a device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from tensordict.primitives.protocol import CollectionProtocol
from tensordict.storage import describing
from tensordict.storage import safetensors_levels as _safetensors
from tensordict.storage import source as sources
from tensordict.storage.layouts import consolidated as _consolidated

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import torch

__all__ = ["ConsolidatingOps"]


class ConsolidatingOps(CollectionProtocol):
    """All leaves in one buffer: a file, shared memory, pinned memory or on a device."""

    def consolidate(
        self,
        filename: Path | str | None = None,
        *,
        num_threads: int = 0,
        device: torch.device | None = None,
        non_blocking: bool = False,
        inplace: bool = False,
        return_early: bool = False,
        use_buffer: bool = False,
        share_memory: bool = False,
        pin_memory: bool = False,
        metadata: bool = False,
        durable: bool = False,
        checks: bool = True,
        pbar: bool = False,
    ) -> Self:
        """Copy all leaves into one buffer and return a locked tensordict over it.

        A consolidated tensordict moves to a device, is sent to a process and is pickled
        in one piece. If this tensordict is consolidated already, it is returned as it
        is, unless another ``filename`` is passed. Replacing or removing an entry, or
        unlocking, ends the consolidated state.

        With ``filename``, the buffer is the mapped file: writes into a leaf reach it.
        The file is written under another name and renamed: after a kill, either the old
        file or the new one exists. :meth:`from_consolidated` reads it.

        Args:
            filename: the path of the file. Default: a buffer in memory.
            num_threads: above 1, allows ``return_early``. The copy always uses several
                threads.
            device: the device of the buffer. Default: the device of the leaves if they
                share one. Not allowed with ``filename``.
            non_blocking: allow copies from a device to overlap.
            inplace: replace the leaves of this tensordict and return it.
            return_early: with ``num_threads`` above 1, return a future at once. Its
                ``result()`` is the tensordict. Do not change the leaves before that.
            use_buffer: with ``filename``, keep the leaves in memory, and write the file
                as a copy.
            share_memory: put the buffer into shared memory.
            pin_memory: put the buffer into pinned memory.
            metadata: accepted for compatibility: the metadata is always made.
            durable: with ``filename``, return only when the file is on the disk.
            checks: with ``filename``, store checksums in it. See
                :func:`tensordict.storage.verify`.
            pbar: with ``filename``, show a progress bar.

        Returns:
            A tensordict of the same structure. A jagged tensor stays jagged.

        Raises:
            RuntimeError: both ``device`` and ``filename`` were passed; ``inplace`` is
                set and the tensordict is locked; a leaf is sparse; or, with
                ``filename``, JSON cannot store a piece of non-tensor data.
            NotImplementedError: a leaf is quantized, or nested and not jagged.
            OSError: the file cannot be written.

        Examples:
            >>> td = TensorDict(a=torch.arange(3), n={"b": torch.ones(3)}, batch_size=[3])
            >>> one = td.consolidate()
            >>> one.is_consolidated(), one.is_locked
            (True, True)
            >>> a, b = one["a"], one["n", "b"]
            >>> a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()
            True
            >>> import os, tempfile
            >>> path = os.path.join(tempfile.mkdtemp(), "all")
            >>> _ = td.consolidate(path)
            >>> TensorDict.from_consolidated(path)["n", "b"]
            tensor([1., 1., 1.])
        """
        options = _consolidated.Options(
            filename,
            num_threads,
            device,
            non_blocking,
            inplace,
            return_early,
            use_buffer,
            share_memory,
            pin_memory,
            durable,
            checks,
            pbar,
        )
        return _consolidated.consolidate(self, options)

    @classmethod
    def from_consolidated(cls, filename: Path | str) -> Self:
        """Load a file of :meth:`consolidate` as a tensordict over the mapped file.

        Writes into its leaves stay in this process.

        Raises:
            FileNotFoundError: the file is missing.
            RuntimeError: the file is damaged or truncated.
            ValueError: the file is no consolidated file.
        """
        return _consolidated.load(filename, cls)

    def is_consolidated(self) -> bool:
        """Return whether all leaves lie in the one buffer of :meth:`consolidate`."""
        return _consolidated.state_of(self) is not None

    # Calls of the engine for dense tensordicts. Other classes override them. ---------

    def _describe(self, rows: Iterator[Any]) -> Any:
        """Describe this tensordict. See :mod:`tensordict.storage.layouts.consolidated`."""
        return describing.describe_dense(self, rows)

    def _described_child(self, name: str) -> Any:
        """Return the tensordict of a nested level."""
        return self._entries()[name]

    @classmethod
    def _from_description(
        cls, level: dict[str, Any], source: Any, path: Any
    ) -> CollectionProtocol:
        """Make a tensordict. See :mod:`tensordict.storage.layouts.consolidated`."""
        return sources.dense_from_description(cls, level, source, path)

    def _put_leaves(self, leaves: Iterator[Any]) -> None:
        """Replace the leaves."""
        _consolidated.put_leaves(self, leaves)

    def _consolidated_home(self) -> Self:
        """Return the tensordict that keeps the reference to the buffer."""
        return self

    def _to_level(self, writer: Any, path: tuple[str, ...]) -> dict[str, Any]:
        """Return this level. See :mod:`tensordict.storage.safetensors_levels`."""
        return _safetensors.dense_to_level(self, writer, path)

    def _to_entry(self, writer: object, path: tuple[str, ...]) -> dict[str, Any]:
        """Return this tensordict as an entry of its parent's level."""
        return {"td": self._to_level(writer, path)}

    @classmethod
    def _from_level(
        cls, level: dict[str, Any], reader: Any, path: Any, is_part: bool = False
    ) -> CollectionProtocol:
        """Make a tensordict. See :mod:`tensordict.storage.safetensors_levels`."""
        return _safetensors.dense_from_level(cls, level, reader, path, is_part)
