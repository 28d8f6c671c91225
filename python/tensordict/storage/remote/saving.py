"""Save to an object store: the files of a layout are made here, and go up."""

from __future__ import annotations

import json
import operator
import os
import tempfile
import time
import uuid
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tensordict.storage import layouts
from tensordict.storage.future import in_background, now_or_later, of_now, with_bar
from tensordict.storage.layouts import consolidated
from tensordict.storage.layouts.safetensors import (
    INDEX_SUFFIX,
    SUFFIX,
    is_index_name,
    to_safetensors,
)
from tensordict.storage.remote.errors import explained
from tensordict.storage.remote.place import place_of
from tensordict.storage.remote.publishing import (
    CHECK_S,
    OWN,
    RECORD,
    Uploads,
    claim,
    files_below,
    forget,
    in_threads,
    put_switch,
    refuse_missing,
    upload_file,
    upload_folder,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from tensordict.primitives.protocol import CollectionProtocol
    from tensordict.storage.layouts import SaveOptions
    from tensordict.storage.layouts.consolidated import Options
    from tensordict.storage.remote.place import Place

__all__ = [
    "refuse_mapping",
    "save",
    "save_consolidated",
    "save_safetensors",
    "stage_and_upload",
]

MSG_MAPPED: Final = (
    "{call} makes files that are stored to, and objects of {url} are not: td.memmap(url) or "
    "td.save(url) writes there what the collection holds."
)
MSG_IN_PLACE: Final = (
    "atomic=False writes over files in place, which no object store does: leave it out."
)


def refuse_mapping(path: object, call: str) -> None:
    """Refuse a URL for a call that needs local files.

    Raises:
        ValueError: always.
    """
    raise ValueError(MSG_MAPPED.format(call=call, url=path))


def save(td: CollectionProtocol, path: Any, options: SaveOptions) -> Any:
    """Save to an object store: the collection over what is there, or a future of it.

    The files are made in the folder of temporary files (``TMPDIR``) first.

    Raises:
        ValueError: the arguments are of files that are stored to.
        FileExistsError: there is a save, and it was not to be replaced; or another writer
            saved there meanwhile.
        OSError: the files could not be made, or the store not be written to.
    """
    place = place_of(path, options.storage_options)
    if options.inplace:
        refuse_mapping(place, "memmap_")
    if options.is_in_place:
        raise ValueError(MSG_IN_PLACE)
    local = options._replace(
        copy_existing=True,
        return_early=False,
        num_threads=options.threads,
        durable=False,
        pbar=False,
        share_non_tensor=False,
        storage_options=None,
        existsok=True,
    )
    # An error of arguments or of the name is one of the call.
    layouts.chosen(td, place.name or "save", local)
    source = of_now(td, options)
    progress = Uploads()

    def work() -> Any:
        stage_and_upload(
            place,
            lambda staged: layouts.save(source, staged, local),
            progress,
            may_replace=options.existsok,
        )
        return layouts.load(None, place)

    return now_or_later(td, work, options, progress)


def stage_and_upload(
    place: Place,
    write: Callable[[Path], object],
    progress: Uploads | None = None,
    *,
    may_replace: bool = True,
) -> None:
    """Write a save to the temporary directory, and upload it.

    Args:
        place: the save that it becomes.
        write: writes the save to the path that it is given.
        progress: is told how far it is.
        may_replace: whether a save that is there may be replaced.

    Raises:
        FileExistsError: there is one, and it may not; or another writer was faster.
        OSError: the files could not be made, or the store not be written to.
    """
    progress = progress or Uploads()
    with tempfile.TemporaryDirectory(prefix="tensordict-") as folder:
        staged = Path(folder) / (place.name or "save")
        write(staged)
        progress.check()
        if staged.is_dir():
            upload_folder(
                staged,
                place,
                progress=progress,
                may_replace=may_replace,
                is_own=True,
            )
            return
        if not may_replace and place.exists():
            raise explained(FileExistsError(), place)
        if staged.is_file():
            progress.total += staged.stat().st_size
            upload_file(place, staged, is_own=True)
            progress.done = progress.total
            return
        _upload_shards(Path(folder), place, progress)


def save_safetensors(
    data: Any,
    place: Place,
    limits: tuple[int | str | None, int | None],
    *,
    pbar: bool,
) -> None:
    """Save a collection as one safetensors object, or as several with an index.

    Args:
        data: the collection.
        place: the object, or the index.
        limits: the most bytes of a shard, and the number of shards; None for one object.
        pbar: whether a progress bar is shown.
    """
    size, shards = limits
    if is_index_name(place.name):
        place = place.parent / place.name.removesuffix(INDEX_SUFFIX)
        shards = 1 if shards is None and size is None else shards
    progress = Uploads()

    def write(staged: Path) -> None:
        to_safetensors(data, staged, shards=shards, max_shard_size=size)

    def work() -> None:
        stage_and_upload(place, write, progress)

    if pbar:
        with_bar(work, progress, "uploading")
    else:
        work()


def save_consolidated(td: Any, options: Options) -> Any:
    """Consolidate in memory, and bring a file of it up: the collection, or a future of it."""
    place = place_of(options.filename)
    progress = Uploads()
    source = td if options.inplace else td.clone(False)

    def work() -> Any:
        made = []

        def write(staged: Path) -> None:
            own = options._replace(
                filename=staged, use_buffer=True, return_early=False, pbar=False
            )
            made.append(consolidated.consolidate(source, own))

        stage_and_upload(place, write, progress)
        return made[0]

    if options.return_early and operator.index(options.num_threads) > 1:
        return in_background(td, work, progress)
    return with_bar(work, progress, "uploading") if options.pbar else work()


def _upload_shards(folder: Path, place: Place, progress: Uploads) -> None:
    """Upload the shards of a safetensors save under unique names, and the index."""
    files = files_below(folder)
    index = next(name for name in files if name.endswith(INDEX_SUFFIX))
    content = json.loads(files.pop(index).read_bytes())
    own = uuid.uuid4().hex[:16]
    names = {name: _own_name(name, own) for name in files}
    weights = content["weight_map"]
    content["weight_map"] = {tensor: names[name] for tensor, name in weights.items()}
    parent = place.parent
    before: tuple[bytes, str | None] | None = None
    try:
        found, about = parent.get_with_tag(index)
        before = found, about.e_tag
    except FileNotFoundError:
        pass
    progress.total += sum(path.stat().st_size for path in files.values())
    calls = [(parent, path, names[name]) for name, path in files.items()]
    record = f"{OWN}{own}/{RECORD}"
    written = [*sorted(names.values()), record]
    began = time.monotonic()
    claim(parent, f"{OWN}{own}/")
    try:
        in_threads(partial(upload_file, is_own=True), calls)
        if time.monotonic() - began >= CHECK_S:
            gone = [name for name in written if not parent.exists(name)]
            refuse_missing(parent, gone)
    except BaseException:
        forget(parent, written)
        raise
    text = (json.dumps(content, indent=2) + "\n").encode()
    try:
        put_switch(parent, index, text, before)
    except FileExistsError:
        forget(parent, written)
        raise
    forget(parent, [record])
    progress.done = progress.total
    gone = [place.name] if place.exists() else []
    if before is not None:
        gone += set(json.loads(before[0])["weight_map"].values())
    parent.delete(gone)


def _own_name(name: str, own: str) -> str:
    """The name of a shard that no other save has: ``model-<own>-00001-of-00002...``."""
    stem, number, _, count = os.path.splitext(name)[0].rsplit("-", 3)
    return f"{stem}-{own}-{number}-of-{count}{SUFFIX}"
