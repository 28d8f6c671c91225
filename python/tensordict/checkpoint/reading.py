"""Read the tensors of a step: memory-mapped, or into new memory."""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensordict import _rust
from tensordict.checkpoint.distributed import rank_file
from tensordict.checkpoint.headers import read_header
from tensordict.checkpoint.steps import read_meta
from tensordict.storage.encoding import Decoder
from tensordict.storage.layouts.interface import CHANGED, DAMAGED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    import torch

    from tensordict.checkpoint.ranges import Bytes, Stored

__all__ = ["StepFiles"]

MSG_LEADS_OUT = (
    "'{}' is damaged: it names the file {!r}, which is not in its directory."
)


class StepFiles:
    """The tensors in the files of one step.

    Args:
        directory: the directory of the step.
        num_threads: the most threads that read.
    """

    def __init__(self, directory: Path, num_threads: int = 0) -> None:
        self.directory: Path = directory
        self.num_threads = num_threads
        # All files are opened through this descriptor, so they belong to one step even
        # if another step replaces the directory.
        self._descriptor: int = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        self._mapped: dict[str, dict[str, torch.Tensor]] = {}
        root = Path(f"/proc/self/fd/{self._descriptor}")
        self.root: Path = root if root.exists() else directory

    def close(self) -> None:
        """Close the directory; mapped tensors stay valid."""
        os.close(self._descriptor)

    @contextmanager
    def names_in_errors(self) -> Iterator[None]:
        """Replace the internal path in errors by the directory that the user knows."""
        root, directory = str(self.root), str(self.directory)
        try:
            yield
        except RuntimeError as error:
            error.args = tuple(
                text.replace(root, directory) if isinstance(text, str) else text
                for text in error.args
            )
            raise
        except OSError as error:
            if error.filename is not None:
                error.filename = os.fspath(error.filename).replace(root, directory)
            raise

    def is_current(self) -> bool:
        """Return whether the directory's name still leads to this step."""
        try:
            return os.path.samestat(os.fstat(self._descriptor), self.directory.stat())
        except OSError:
            return False

    def paths(self, metadata: Mapping[str, Any]) -> list[str]:
        """Return the paths of an item's files.

        Raises:
            RuntimeError: a file is not in the directory.
        """
        for name in metadata["files"]:
            if Path(name).name != name:
                raise RuntimeError(MSG_LEADS_OUT.format(self.directory, name))
        return [str(self.root / name) for name in metadata["files"]]

    def digests(self, metadata: Mapping[str, Any]) -> list[tuple[str, str | None]]:
        """Return the paths of an item's files, each with its header's digest or None."""
        paths = self.paths(metadata)
        digests: list[str | None] = metadata.get("headers") or [None] * len(paths)
        return list(zip(paths, digests, strict=True))

    def parts(self, meta: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        """Return the description that each rank wrote of its part of the step."""
        others = range(1, meta.get("world", 1))
        return [meta, *(read_meta(self.root, rank_file(rank)) for rank in others)]

    def bring(self, wanted: Mapping[str, Iterable[Bytes]]) -> None:
        """Make bytes of tensors available, by the paths of files; on a disk, do nothing."""

    def bring_tensors(self, tensors: Sequence[Stored]) -> None:
        """Make all bytes of tensors available before mapping; on a disk, do nothing."""

    def lazy_tensor(self, stored: Stored) -> torch.Tensor | None:
        """Return a tensor that is read when it is used; None if it has several files."""
        return self.mapped_tensor(stored) if stored.is_one_file else None

    def decoder(
        self,
        tensors: Mapping[str, torch.Tensor],
        source: Any,
        device: torch.device | None,
        sharded: Callable[[Mapping[str, Any]], torch.Tensor],
    ) -> Decoder:
        """Return a decoder that builds the values of an item from its tensors."""
        return Decoder(tensors, source, device, sharded)

    def shown(self, loaded: Any) -> Any:
        """Return the tensordict of a step whose tensors come from :meth:`lazy_tensor`."""
        return loaded

    def mapped_tensor(self, stored: Stored) -> torch.Tensor:
        """Return a tensor that is memory-mapped from its file; writes stay in this process.

        Raises:
            FileNotFoundError: another step has replaced this one.
        """
        source = stored.find(0)
        if source.path not in self._mapped:
            # Use the real path: a process that receives the tensor opens the file by
            # it.
            place = str(self.directory / Path(source.path).name)
            self._mapped[source.path] = _rust.read_safetensors(place, "r")[1]
            if not self.is_current():
                raise FileNotFoundError(2, "The step was replaced", str(self.directory))
        tensor = self._mapped[source.path][source.name]
        if tensor.dtype == stored.dtype:
            return tensor
        # The tensor's bytes may not be aligned for its dtype.
        return tensor.clone().view(stored.dtype).reshape(stored.shape)

    def problems(self, metadata: Mapping[str, Any]) -> list[str]:
        """Return one line for each problem of an item's files."""
        lines = []
        for path, digest in self.digests(metadata):
            read_header(path, digest)
            progress = _rust.SaveProgress()
            results = _rust.verify_save(path, self.num_threads, False, progress)[2]
            # Files of a checkpoint never change after a save, so changed bytes are
            # damage.
            bad = {DAMAGED, *CHANGED}
            lines += [line for *_, outcome, _, line in results if outcome in bad]
        return lines
