"""Save, load and check a real model, then fill and read a dataset on disk.

The demo saves the parameters of a ``torch.nn.Transformer`` and loads them,
memory-mapped, into a second model, whose output must be equal bit for bit. Then it
allocates a dataset on disk, fills it, and reads random batches, each compared with the
written values.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import dataclasses
import inspect
import os
import shutil
import sys
import tempfile
import textwrap
import time
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

import torch

from tensordict import MemoryMappedTensor, TensorDict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# The rows that are written at a time: a few MB, so that the progress bar moves.
CHUNK_ROWS = 1024
# An odd number, so that neighbouring images differ in every byte.
SHADE_STEP = 7
HEADS = 4
RATES = """
These are rates of the page cache: the kernel keeps written data in memory, and writes it
to the disk later. `memmap(path, durable=True)` waits for the disk."""
# The demo created a folder with this file, and may empty it.
MARKER = ".tensordict-demo"


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@dataclasses.dataclass(frozen=True)
class Sizes:
    """The amount of work; the defaults are a model of 400 MB and a dataset of 1.2 GB."""

    d_model: int = 768
    layers: int = 6
    images: int = 100_000
    side: int = 64
    batch: int = 256
    batches: int = 200
    threads: int = min(_cores(), 8)

    def model_bytes(self) -> int:
        """Return roughly the bytes of the model: 12 + 16 d_model² weights a layer."""
        return 4 * 28 * self.layers * self.d_model**2

    def dataset_bytes(self) -> int:
        """Return the bytes of the images and of their labels."""
        return self.images * (self.side * self.side * 3 + 8)


class Progress(Protocol):
    """The part of a progress bar that the demo uses."""

    def update(self, n: float = 1) -> object:
        """Advance the bar by ``n``."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``python -m tensordict demo``."""
    parser.add_argument(
        "path",
        nargs="?",
        type=Path,
        metavar="PATH",
        help="new or empty folder, or the folder of an earlier demo, to work in and keep; "
        "default: a temporary folder",
    )
    helps = {
        "d_model": "width of the transformer",
        "layers": "layers of its encoder, and of its decoder",
        "images": "images in the dataset",
        "side": "height and width of an image, in pixels",
        "batch": "images in a random batch",
        "batches": "random batches to read",
        "threads": "threads that write and read the model",
    }
    for field in dataclasses.fields(Sizes):
        parser.add_argument(
            f"--{field.name.replace('_', '-')}",
            type=_width if field.name == "d_model" else _positive,
            default=field.default,
            metavar="N",
            help=f"{helps[field.name]} (default: %(default)s)",
        )


def run(arguments: argparse.Namespace) -> int:
    """Run the demo; return 0 only if all checks succeeded."""
    names = [field.name for field in dataclasses.fields(Sizes)]
    sizes = Sizes(**{name: getattr(arguments, name) for name in names})
    checks = Checks()
    if arguments.path is not None and not _is_ours(arguments.path):
        print(
            f"{arguments.path} contains files that no earlier demo wrote: pass a new or "
            "empty folder.",
            file=sys.stderr,
        )
        return 1
    with _working_folder(arguments.path) as folder:
        # During the comparison with torch.save, the model is on the disk twice.
        needed = 2 * sizes.model_bytes() + sizes.dataset_bytes()
        free = shutil.disk_usage(folder).free
        if free < needed:
            print(
                f"{folder} has {_size(free)} free, but the demo needs about "
                f"{_size(needed)}: pass another PATH or smaller sizes (see --help).",
                file=sys.stderr,
            )
            return 1
        print(f"working in {folder}")
        checkpoint_of_a_model(folder / "model", sizes, checks)
        dataset_on_disk(folder / "dataset", sizes, checks)
    print(RATES)
    return checks.conclude()


class Checks:
    """The checks of the demo, with their results."""

    def __init__(self) -> None:
        self.num_held: int = 0
        self.failed: list[str] = []

    def hold(self, check: str, is_true: bool) -> None:
        """Record and print whether a check succeeded."""
        print(f"  {'ok' if is_true else 'FAILED':<7} {check}", flush=True)
        if is_true:
            self.num_held += 1
        else:
            self.failed.append(check)

    def conclude(self) -> int:
        """Print the overall result, and return the exit status."""
        if self.failed:
            print(f"{len(self.failed)} checks FAILED: {'; '.join(self.failed)}")
            return 1
        print(f"all {self.num_held} checks held")
        return 0


# The steps that the demo shows: it prints the body of the function that it runs.


def _save(model: torch.nn.Module, path: Path, threads: int) -> TensorDict:
    params = TensorDict.from_module(model)
    return params.memmap(path, num_threads=threads)


def _load(path: Path) -> TensorDict:
    return TensorDict.load_memmap(path, mode="r")


def _use(loaded: TensorDict, other: torch.nn.Module) -> object:
    return loaded.to_module(other)


def _allocate(path: Path, image: torch.Tensor, count: int) -> TensorDict:
    row = TensorDict(images=image, labels=torch.tensor(0))
    return row.expand(count).memmap_like(path)


def _fill(dataset: TensorDict, rows: slice, batch: TensorDict) -> None:
    dataset[rows] = batch


def _read(dataset: TensorDict, rows: torch.Tensor) -> TensorDict:
    return dataset[rows]


def checkpoint_of_a_model(path: Path, sizes: Sizes, checks: Checks) -> None:
    """Save a transformer at ``path``, load it lazily, and run a second one with it."""
    source, target = _transformer(sizes, seed=0), _transformer(sizes, seed=1)
    params = TensorDict.from_module(source)
    num_bytes = _num_bytes(params)
    num_tensors = len(list(params.keys(include_nested=True, leaves_only=True)))
    print(f"model: torch.nn.Transformer, {num_tensors} tensors, {_size(num_bytes)}")

    _show(_save)
    start = time.perf_counter()
    _save(source, path, sizes.threads)
    save_s = _report("saved", num_bytes, start)

    _show(_load, "loaded")
    start = time.perf_counter()
    loaded = _load(path)
    load_s = time.perf_counter() - start
    print(f"  mapped in {1e3 * load_s:.1f} ms; tensors are read when they are used")
    _show_repr("loaded['encoder', 'layers', '0', 'linear1']", loaded)
    _compare_with_torch(source, path.parent, save_s, load_s)

    on_disk = sum(file.stat().st_size for file in path.rglob("*.memmap"))
    checks.hold("the files hold each tensor once", on_disk == num_bytes)
    leaves = list(loaded.values(include_nested=True, leaves_only=True))
    mapped = all(isinstance(leaf, MemoryMappedTensor) for leaf in leaves)
    checks.hold("every loaded tensor is mapped from its file", mapped)

    start = time.perf_counter()
    same = bool((loaded == params.data).all())
    _report("compared", num_bytes, start)
    checks.hold("the loaded values equal the saved values", same)

    with torch.no_grad(), _one_attention_path():
        generator = torch.Generator().manual_seed(2)
        words = torch.randn(2, 8, sizes.d_model, generator=generator)
        expected = source(words, words)
        checks.hold(
            "the second model differs before", not expected.equal(target(words, words))
        )
        _show(_use)
        _use(loaded, target)
        checks.hold(
            "the second model's output is the same after",
            expected.equal(target(words, words)),
        )


def _compare_with_torch(
    model: torch.nn.Module, folder: Path, save_s: float, load_s: float
) -> None:
    """Print how long ``torch.save`` and ``torch.load`` take for the same tensors."""
    with tempfile.TemporaryDirectory(dir=folder) as work:
        path = Path(work, "model.pt")
        start = time.perf_counter()
        torch.save(model.state_dict(), path)
        torch_save_s = time.perf_counter() - start
        start = time.perf_counter()
        torch.load(path, weights_only=True)
        torch_load_s = time.perf_counter() - start
    print(
        f"  in comparison: torch.save takes {torch_save_s:.2f} s, this {save_s:.2f} s;\n"
        f"  torch.load, which reads all of it, {1e3 * torch_load_s:.1f} ms, "
        f"this {1e3 * load_s:.1f} ms"
    )


def dataset_on_disk(path: Path, sizes: Sizes, checks: Checks) -> None:
    """Allocate a dataset at ``path``, fill it, and read random batches."""
    num_bytes = sizes.dataset_bytes()
    side = sizes.side
    print()
    print(f"dataset: {sizes.images:,} images of {side}x{side}x3, {_size(num_bytes)}")
    image = torch.zeros(side, side, 3, dtype=torch.uint8)
    # Neither call needs memory: an expanded tensor is a view of one image, and the
    # files of memmap_like are sparse until they are written.
    _show(_allocate, "dataset")
    dataset = _allocate(path, image, sizes.images)
    _show_repr("dataset", dataset)

    generator = torch.Generator().manual_seed(3)
    pattern = torch.randint(256, (side, side, 3), generator=generator)
    pattern = pattern.to(torch.uint8)

    _show(_fill)
    start = time.perf_counter()
    with _progress(sizes.images, "filling", " images") as bar:
        for rows in torch.arange(sizes.images).split(CHUNK_ROWS):
            chosen = slice(int(rows[0]), int(rows[-1]) + 1)
            _fill(dataset, chosen, _images(rows, pattern))
            bar.update(len(rows))
    _report("filled", num_bytes, start, sizes.images)

    dataset = TensorDict.load_memmap(path)
    checks.hold(
        "the dataset is loaded again with all rows",
        dataset.batch_size == (sizes.images,),
    )

    _show(_read, "batch")
    same = True
    elapsed_s = 0.0
    with _progress(sizes.batches, "reading", " batches") as bar:
        for _ in range(sizes.batches):
            rows = torch.randint(sizes.images, (sizes.batch,), generator=generator)
            start = time.perf_counter()
            batch = _read(dataset, rows)
            elapsed_s += time.perf_counter() - start
            same = same and bool((batch == _images(rows, pattern)).all())
            bar.update(1)
    num_rows = sizes.batch * sizes.batches
    read_bytes = num_bytes // sizes.images * num_rows
    _report("read", read_bytes, time.perf_counter() - elapsed_s, num_rows)
    checks.hold("every random batch equals the written rows", same)


def _images(rows: torch.Tensor, pattern: torch.Tensor) -> TensorDict:
    """Return the images ``rows``: the pattern, shaded by the row; the label is the row."""
    shade = (rows * SHADE_STEP).to(torch.uint8)
    return TensorDict(
        {"images": pattern + shade[:, None, None, None], "labels": rows},
        batch_size=[len(rows)],
    )


def _transformer(sizes: Sizes, *, seed: int) -> torch.nn.Transformer:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = torch.nn.Transformer(
            d_model=sizes.d_model,
            nhead=HEADS,
            num_encoder_layers=sizes.layers,
            num_decoder_layers=sizes.layers,
            dim_feedforward=4 * sizes.d_model,
            batch_first=True,
        )
    return model.eval()


@contextlib.contextmanager
def _one_attention_path() -> Iterator[None]:
    """Turn off torch's fused attention.

    It is used only for parameters of class ``Parameter``, and rounds differently:
    outputs of two models with equal weights would differ in the last bits.
    """
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def _is_ours(path: Path) -> bool:
    """Return whether ``path`` may be emptied: missing, empty, or of an earlier demo."""
    if not path.exists():
        return True
    return path.is_dir() and ((path / MARKER).exists() or not any(path.iterdir()))


@contextlib.contextmanager
def _working_folder(path: Path | None) -> Iterator[Path]:
    if path is not None:
        path.mkdir(parents=True, exist_ok=True)
        (path / MARKER).touch()
        for name in ("model", "dataset"):
            shutil.rmtree(path / name, ignore_errors=True)
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="tensordict-demo-") as folder:
        yield Path(folder)


def _show(step: Callable[..., object], name: str = "") -> None:
    """Print the body of the function ``step``; its result gets the name ``name``."""
    source = textwrap.dedent(inspect.getsource(step))
    function = cast("ast.FunctionDef", ast.parse(source).body[0])
    print()
    for statement in function.body:
        text = ast.get_source_segment(source, statement) or ""
        assigned = f"{name} = " if name else ""
        print(f"  >>> {text.replace('return ', assigned)}", flush=True)


def _show_repr(expression: str, value: TensorDict) -> None:
    """Print ``expression``, a name with or without an index, and its repr."""
    print(f"  >>> {expression}")
    _, bracket, index = expression.partition("[")
    if bracket:
        value = value[tuple(ast.literal_eval(f"[{index}"))]
    print(textwrap.indent(repr(value), "  "), flush=True)


@contextlib.contextmanager
def _progress(total: int, title: str, unit: str) -> Iterator[Progress]:
    """Show a progress bar on a terminal, if tqdm is installed."""
    bar: Progress = _NoBar()
    if sys.stderr.isatty():
        with contextlib.suppress(ImportError):
            from tqdm import tqdm

            with tqdm(total=total, desc=f"  {title}", unit=unit, leave=False) as bar:
                yield bar
            return
    yield bar


class _NoBar:
    def update(self, n: float = 1) -> None:
        """Show nothing."""


def _num_bytes(params: TensorDict) -> int:
    leaves = params.values(include_nested=True, leaves_only=True)
    return sum(leaf.numel() * leaf.element_size() for leaf in leaves)


def _report(
    action: str, num_bytes: int, start: float, num_rows: int | None = None
) -> float:
    """Print the time since ``start``, and the rate; return the time."""
    elapsed_s = max(time.perf_counter() - start, 1e-9)
    rows = "" if num_rows is None else f", {num_rows / elapsed_s:,.0f} images/s"
    print(
        f"  {action} {_size(num_bytes)} in {elapsed_s:.2f} s: "
        f"{_size(num_bytes / elapsed_s)}/s{rows}",
        flush=True,
    )
    return elapsed_s


def _size(num_bytes: float) -> str:
    for unit in ("B", "kB", "MB"):
        if num_bytes < 1000:
            return f"{num_bytes:.3g} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.3g} GB"


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        message = f"must be at least 1, got {text}"
        raise argparse.ArgumentTypeError(message)
    return value


def _width(text: str) -> int:
    value = _positive(text)
    if value % HEADS:
        message = f"must be a multiple of {HEADS} (attention heads), got {text}"
        raise argparse.ArgumentTypeError(message)
    return value
