"""Reading the tensors of a step: mapped, or into memory of their own."""

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
    """The tensors of the files of one step.

    Args:
        directory: the directory of the step.
        num_threads: the most threads that read.
    """

    def __init__(self, directory: Path, num_threads: int = 0) -> None:
        self.directory: Path = directory
        self.num_threads = num_threads
        # All is read through it, so it is of one step, also where another one takes the
        # place of this.
        self._descriptor: int = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        self._mapped: dict[str, dict[str, torch.Tensor]] = {}
        root = Path(f"/proc/self/fd/{self._descriptor}")
        self.root: Path = root if root.exists() else directory

    def close(self) -> None:
        """Give the directory back; what is mapped stays."""
        os.close(self._descriptor)

    @contextmanager
    def names_in_errors(self) -> Iterator[None]:
        """Have errors name the directory by the name that users know."""
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
        """Return whether the step is still what its name leads to."""
        try:
            return os.path.samestat(os.fstat(self._descriptor), self.directory.stat())
        except OSError:
            return False

    def paths(self, about: Mapping[str, Any]) -> list[str]:
        """The files of an item.

        Raises:
            RuntimeError: one is not in the directory.
        """
        for name in about["files"]:
            if Path(name).name != name:
                raise RuntimeError(MSG_LEADS_OUT.format(self.directory, name))
        return [str(self.root / name) for name in about["files"]]

    def digests(self, about: Mapping[str, Any]) -> list[tuple[str, str | None]]:
        """The files of an item, each with the digest of its header if there is one."""
        paths = self.paths(about)
        known: list[str | None] = about.get("headers") or [None] * len(paths)
        return list(zip(paths, known, strict=True))

    def parts(self, meta: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        """Return the description that each rank gives of its part of the step."""
        others = range(1, meta.get("world", 1))
        return [meta, *(read_meta(self.root, rank_file(rank)) for rank in others)]

    def bring(self, wanted: Mapping[str, Iterable[Bytes]]) -> None:
        """Have bytes of tensors here, by the paths of files: on a disk they are."""

    def bring_tensors(self, tensors: Sequence[Stored]) -> None:
        """Have all bytes of tensors here that are mapped later: on a disk they are."""

    def lazy_tensor(self, stored: Stored) -> torch.Tensor | None:
        """A tensor that is read when it is used; None if its bytes are in several files."""
        return self.mapped_tensor(stored) if stored.is_one_file else None

    def decoder(
        self,
        tensors: Mapping[str, torch.Tensor],
        source: Any,
        device: torch.device | None,
        sharded: Callable[[Mapping[str, Any]], torch.Tensor],
    ) -> Decoder:
        """Return the maker of values of an item from its tensors, as :class:`Decoder`."""
        return Decoder(tensors, source, device, sharded)

    def shown(self, loaded: Any) -> Any:
        """Return the collection of a step, of tensors that :meth:`lazy_tensor` has made."""
        return loaded

    def mapped_tensor(self, stored: Stored) -> torch.Tensor:
        """A tensor over its file; stores stay in this process.

        Raises:
            FileNotFoundError: another step took the place of this one.
        """
        source = stored.find(0)
        if source.path not in self._mapped:
            # By the name that other processes know it by, who may be sent the tensors.
            place = str(self.directory / Path(source.path).name)
            self._mapped[source.path] = _rust.read_safetensors(place, "r")[1]
            if not self.is_current():
                raise FileNotFoundError(2, "The step was replaced", str(self.directory))
        tensor = self._mapped[source.path][source.name]
        if tensor.dtype == stored.dtype:
            return tensor
        # Bytes begin anywhere in a file, and numbers of many bytes may not.
        return tensor.clone().view(stored.dtype).reshape(stored.shape)

    def problems(self, about: Mapping[str, Any]) -> list[str]:
        """List the problems of the files of an item, a line each."""
        lines = []
        for path, digest in self.digests(about):
            read_header(path, digest)
            progress = _rust.SaveProgress()
            found = _rust.verify_save(path, self.num_threads, False, progress)[2]
            # A checkpoint is never filled like a dataset: other bytes are damage.
            bad = {DAMAGED, *CHANGED}
            lines += [line for *_, outcome, _, line in found if outcome in bad]
        return lines
