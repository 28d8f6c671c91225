"""Reading the tensors of a step: mapped, or into memory of their own."""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from tensordict import _rust
from tensordict.checkpoint.distributed import rank_file
from tensordict.checkpoint.ranges import whole_range
from tensordict.checkpoint.steps import read_meta
from tensordict.storage.encoding import Decoder, dtype_of
from tensordict.storage.layouts.interface import CHANGED, DAMAGED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

__all__ = ["StepFiles"]

MSG_LEADS_OUT = (
    "'{}' is damaged: it names the file {!r}, which is not in its directory."
)
MSG_PART = "'{}' is damaged: parts of the tensor {!r} are missing."
MSG_DAMAGED = "Nothing was changed, since the checkpoint is damaged:\n{}"


class StepFiles:
    """The tensors of the files of one step.

    Args:
        directory: the directory of the step.
        num_threads: the most threads that read.
    """

    def __init__(self, directory: Path, num_threads: int = 0) -> None:
        self.directory = directory
        self.num_threads = num_threads
        # All is read through it, so it is of one step, also where another one takes the
        # place of this.
        self._descriptor: int = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
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

    def parts(self, meta: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        """Return the description that each rank gives of its part of the step."""
        others = range(1, meta.get("world", 1))
        return [meta, *(read_meta(self.root, rank_file(rank)) for rank in others)]

    def assembler(
        self, parts: list[Mapping[str, Any]], item: str
    ) -> Callable[[Mapping[str, Any]], torch.Tensor]:
        """Return a function that assembles a tensor from the parts of ranks."""
        tensors: dict[int, dict[str, torch.Tensor]] = {}

        def assemble(fields: Mapping[str, Any]) -> torch.Tensor:
            whole = torch.empty(fields["shape"], dtype=dtype_of(fields["dtype"]))
            found = 0
            for rank, part in enumerate(parts):
                about = part["items"].get(item, {})
                shard = about.get("shards", {}).get(fields["key"])
                if shard is None:
                    continue
                if rank not in tensors:
                    tensors[rank] = self.mapped(about)
                place = whole
                for dim, (start, length) in enumerate(
                    zip(shard["offsets"], shard["sizes"], strict=True)
                ):
                    place = place.narrow(dim, start, length)
                place.copy_(Decoder(tensors[rank], self.directory).taken(shard))
                found += place.numel()
            if found != whole.numel():
                key = fields["key"]
                raise RuntimeError(MSG_PART.format(self.directory, key))
            return whole

        return assemble

    def mapped(self, about: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """The tensors of an item over its files; stores stay in this process.

        Raises:
            FileNotFoundError: another step took the place of this one.
        """
        tensors: dict[str, torch.Tensor] = {}
        for path in self.paths(about):
            # By the name that other processes know it by, who may be sent the tensors.
            place = str(self.directory / Path(path).name)
            tensors.update(_rust.read_safetensors(place, "r")[1])
        if not self.is_current():
            raise FileNotFoundError(2, "The step was replaced", str(self.directory))
        return tensors

    def described(self, about: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """Tensors of the dtypes and shapes of an item, on ``meta``."""
        return {
            name: torch.empty(shape, dtype=_dtype(dtype), device="meta")
            for path in self.paths(about)
            for name, dtype, shape, _, _ in _rust.safetensors_header(path)[1]
        }

    def in_memory(
        self, about: Mapping[str, Any], names: Iterable[str] | None = None
    ) -> dict[str, torch.Tensor]:
        """The tensors of an item in memory of their own, compared with their checksums."""
        wanted = None if names is None else set(names)
        tensors = {
            name: torch.empty(like.shape, dtype=like.dtype)
            for name, like in self.described(about).items()
            if wanted is None or name in wanted
        }
        self.read_into([(about, tensors)])
        return tensors

    def read_into(
        self, items: Iterable[tuple[Mapping[str, Any], Mapping[str, torch.Tensor]]]
    ) -> None:
        """Read tensors of items into tensors of the CPU without gaps, by several threads.

        Raises:
            RuntimeError: a file is damaged. What was read is in the tensors by then.
        """
        files = []
        for about, tensors in items:
            for path in self.paths(about):
                found = [name for name, *_ in _rust.safetensors_header(path)[1]]
                wanted = [
                    whole_range(name, tensors[name])
                    for name in found
                    if name in tensors
                ]
                if wanted:
                    files.append((path, wanted))
        progress = _rust.SaveProgress()
        _rust.read_safetensors_into(files, self.num_threads, True, progress)

    def check(self, about: Mapping[str, Any]) -> None:
        """Compare the files of an item with their checksums.

        Raises:
            RuntimeError: they are others.
        """
        lines = self.problems(about)
        if lines:
            raise RuntimeError(MSG_DAMAGED.format("\n".join(lines)))

    def problems(self, about: Mapping[str, Any]) -> list[str]:
        """List the problems of the files of an item, a line each."""
        lines = []
        for path in self.paths(about):
            progress = _rust.SaveProgress()
            found = _rust.verify_save(path, self.num_threads, False, progress)[2]
            # A checkpoint is never filled like a dataset: other bytes are damage.
            bad = {DAMAGED, *CHANGED}
            lines += [line for *_, outcome, _, line in found if outcome in bad]
        return lines


def _dtype(name: str) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, name.removeprefix("torch."))
    return dtype
