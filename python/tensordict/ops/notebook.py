"""Trees of a tensordict with small previews, for notebooks and consoles.

The HTML needs no script and no other file. It takes the colours of the page, so that it
is readable in dark and light, and it escapes user data.
"""

from __future__ import annotations

import base64
import html
import importlib.util
import io
from typing import Any, Final, NamedTuple

import torch

from tensordict.ops import display
from tensordict.primitives.metatensor import MetaTensor
from tensordict.primitives.protocol import CollectionProtocol
from tensordict.storage.tensors.mapped import MemoryMappedTensor

__all__ = ["Shown", "html_page", "html_tree", "rich_tree", "show"]

STYLE: Final = """\
<style>
.td-tree{font:13px/1.6 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;\
color:inherit;max-width:100%;overflow-x:auto}
.td-tree ul{list-style:none;margin:0 0 0 .4em;padding:0 0 0 1.2em;\
border-left:1px solid;border-color:rgba(128,128,128,.35)}
.td-tree li,.td-tree summary{margin:0;overflow-wrap:anywhere}
.td-tree summary{cursor:pointer}
.td-tree b{font-weight:600;vertical-align:middle}
.td-tree i{font-style:normal;opacity:.7;margin-left:.8em}
.td-tree .td-long{display:inline-block;max-width:min(40em,90%);overflow:hidden;\
text-overflow:ellipsis;white-space:nowrap;vertical-align:middle}
.td-tree img{image-rendering:pixelated;vertical-align:middle;margin-left:.8em;\
max-height:64px}
.td-tree svg{vertical-align:middle;margin-left:.8em;fill:currentColor;opacity:.7}
</style>"""

PAGE: Final = """\
<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport"
content="width=device-width"><meta name="color-scheme" content="light dark">
<title>{title}</title></head>
<body style="margin:1.5em;color:CanvasText;background:Canvas">
<h1 style="font:600 18px system-ui,sans-serif;overflow-wrap:anywhere">{title}</h1>
{tree}
</body></html>
"""

# A level with more entries shows the first entries and the number of the others.
ENTRIES_SHOWN: Final = 200
# The levels below the root that are open at first if they have few entries.
LEVELS_OPEN: Final = 2
ENTRIES_OPEN: Final = 30

EXCLUSIVE: Final = "entries that not all members have"

IMAGES_SHOWN: Final = 4
IMAGE_SIDE: Final = 64
VALUES_SHOWN: Final = 4
TEXT_SHOWN: Final = 200
HISTOGRAM_BARS: Final = 24
HISTOGRAM_SAMPLE: Final = 65_536


class Previews(NamedTuple):
    """The kinds of previews to draw."""

    images: bool = True
    histograms: bool = False
    reads_stores: bool = False
    """Whether rows of tensors in an object store are read for previews."""


USUAL_PREVIEWS: Final = Previews()


class Shown:
    """A tensordict that a notebook draws as a tree; see :func:`show`.

    Args:
        td: the tensordict.
        previews: the previews to draw.
    """

    def __init__(self, td: object, previews: Previews) -> None:
        self._td = td
        self._previews = previews

    def __repr__(self) -> str:
        return repr(self._td)

    def _repr_html_(self) -> str:
        return html_tree(self._td, self._previews)


def show(td: Any, *, images: bool = True, histograms: bool = False) -> Shown:
    """Show a tensordict in a notebook, with previews of its values.

    Args:
        td: a tensordict of any class.
        images: draw the first rows of leaves that look like images: dtype ``uint8`` and
            feature dimensions ``[H, W]``, ``[C, H, W]`` or ``[H, W, C]``, with sides of
            at least 8 and 1, 3 or 4 channels. Needs ``pillow``; without it no image is
            drawn.
        histograms: draw a histogram of each leaf's values, from a regular sample of at
            most 65,536 values.

    Returns:
        An object that a notebook draws as a tree and a console prints as ``td``.

    Examples:
        >>> td = TensorDict(a=torch.zeros(3, 2), batch_size=[3])
        >>> "float32" in show(td)._repr_html_()
        True
    """
    return Shown(td, Previews(images, histograms))


def html_page(
    td: Any, title: str, *, images: bool, histograms: bool, reads_stores: bool = False
) -> str:
    """Return a complete HTML page that a browser opens without a server."""
    tree = html_tree(td, Previews(images, histograms, reads_stores))
    return PAGE.format(title=html.escape(title), tree=tree)


def html_tree(td: Any, previews: Previews = USUAL_PREVIEWS) -> str:
    """Return the tree of a tensordict as HTML.

    The values of a leaf are read only for previews: a few images, single numbers, and
    histograms if requested.
    """
    return (
        f'{STYLE}<div class="td-tree">{_tensordict_element("", td, 0, previews)}</div>'
    )


def _tensordict_element(key: str, td: Any, level: int, previews: Previews) -> str:
    """Return one tensordict with all its entries as a collapsible element."""
    entries = td._repr_entries()
    is_open = level == 0 or (level <= LEVELS_OPEN and len(entries) <= ENTRIES_OPEN)
    title = f"<b>{html.escape(key)}</b>" if key else ""
    class_name = type(td).__name__
    label = _note(class_name) if key else f"<b>{html.escape(class_name)}</b>"
    notes = "".join(map(_note, _summary_notes(td, entries)))
    return (
        f"<details{' open' if is_open else ''}><summary>{title}{label}{notes}</summary>"
        f"{_list(td, entries, level, previews)}</details>"
    )


def _list(
    td: Any, entries: list[tuple[str, Any]], level: int, previews: Previews
) -> str:
    """Return the entries of a tensordict, then those that some members lack."""
    items = [
        _item(key, value, td, level, previews) for key, value in entries[:ENTRIES_SHOWN]
    ]
    items += [f"<li><i>{text}</i></li>" for text in _rest(entries)]
    members = td._repr_exclusive()
    for position, own_entries in members[:ENTRIES_SHOWN]:
        inner = _list(td.tensordicts[position], own_entries, level + 1, previews)
        summary = f"<summary><b>[{position}]</b>{_note(EXCLUSIVE)}</summary>"
        items.append(f"<li><details>{summary}{inner}</details></li>")
    items += [f"<li><i>{text}</i></li>" for text in _rest(members)]
    return f"<ul>{''.join(items)}</ul>"


def rich_tree(td: Any) -> Any:
    """Return the tree that the library ``rich`` prints."""
    import rich.text
    import rich.tree

    def line(name: str, notes: list[str]) -> Any:
        parts = [(name, "bold"), *((f"  {note}", "dim") for note in notes if note)]
        return rich.text.Text.assemble(*parts)

    def grow(tree: Any, td: Any, entries: list[tuple[str, Any]]) -> Any:
        for key, value in entries[:ENTRIES_SHOWN]:
            if _is_level(value):
                inner = value._repr_entries()
                notes = [type(value).__name__, *_summary_notes(value, inner)]
                grow(tree.add(line(key, notes)), value, inner)
            else:
                tree.add(line(key, _leaf_notes(value, td)))
        members = td._repr_exclusive()
        for position, own_entries in members[:ENTRIES_SHOWN]:
            branch = tree.add(line(f"[{position}]", [EXCLUSIVE]))
            grow(branch, td.tensordicts[position], own_entries)
        for text in [*_rest(entries), *_rest(members)]:
            tree.add(line("", [text]))
        return tree

    entries = td._repr_entries()
    root = rich.tree.Tree(line(type(td).__name__, _summary_notes(td, entries)))
    return grow(root, td, entries)


def _is_level(value: object) -> bool:
    """Return whether an entry is shown as a level with children, not as a leaf."""
    return isinstance(value, CollectionProtocol) and value._repr_short() is None


def _rest(entries: list[Any]) -> list[str]:
    """Return a line with the number of entries that are not shown, if there are any."""
    more = len(entries) - ENTRIES_SHOWN
    return [f"… {more:,} more"] if more > 0 else []


def _summary_notes(td: Any, entries: list[tuple[str, Any]]) -> list[str]:
    """Return the notes on a tensordict's line after its class."""
    place = _place_of_all(td)
    count = f"{len(entries)} {'entry' if len(entries) == 1 else 'entries'}"
    locked = ["locked"] if td.is_locked and not place else []
    return [*td._repr_head(), count, *place, *locked]


def _place_of_all(td: Any) -> list[str]:
    if td.is_memmap():
        return ["memory-mapped"]
    return ["shared"] if td.is_shared() else []


def _item(key: str, value: object, td: object, level: int, previews: Previews) -> str:
    if _is_level(value):
        return f"<li>{_tensordict_element(key, value, level + 1, previews)}</li>"
    return f"<li><b>{html.escape(key)}</b>{_leaf(value, td, previews)}</li>"


def _leaf(value: object, td: Any, previews: Previews) -> str:
    notes = "".join(map(_note, _leaf_notes(value, td)))
    if not isinstance(value, torch.Tensor):
        return notes
    return notes + _preview(value, td.batch_dims, previews)


def _leaf_notes(value: object, td: object) -> list[str]:
    """Return the notes on a leaf's line: metadata, or values of non-tensor data."""
    if isinstance(value, display.PrintedEntry):
        value = value.value
    if isinstance(value, CollectionProtocol):
        # The text is cut, and a row takes at least one character: read no more rows.
        rows = value[:TEXT_SHOWN] if value.batch_dims else value
        return [_cut(repr(rows.tolist())), value._repr_short() or ""]
    if isinstance(value, MetaTensor):
        return _metadata(value, td)
    if not isinstance(value, torch.Tensor):
        return [_cut(repr(value))]
    return [*_metadata(value, td), *_place(value)]


def _metadata(value: Any, td: Any) -> list[str]:
    """Return dtype, shape and size of a leaf, and its device if not the parent's."""
    shape = display._known_shape(value)
    notes = [str(value.dtype).removeprefix("torch."), str(shape)]
    if -1 not in shape:
        notes.append(display.readable(torch.Size(shape).numel() * value.dtype.itemsize))
    if value.device != (td.device or torch.device("cpu")):
        notes.append(str(value.device))
    return notes


def _place(value: torch.Tensor) -> list[str]:
    notes = [] if type(value) is torch.Tensor else [type(value).__name__]
    if isinstance(value, MemoryMappedTensor):
        notes = ["memory-mapped"]
    elif (
        display._or_unknown(torch.Tensor.is_shared, value)
        and value.device.type == "cpu"
    ):
        notes.append("shared")
    if value.requires_grad:
        notes.append("requires grad")
    return notes


def _note(text: str) -> str:
    return f'<i class="td-long">{html.escape(text)}</i>' if text else ""


def _cut(text: str) -> str:
    return text if len(text) <= TEXT_SHOWN else f"{text[:TEXT_SHOWN]}…"


# Previews --------------------------------------------------------------------------


def _preview(value: torch.Tensor, batch_dims: int, previews: Previews) -> str:
    """Return small pictures of the values, or nothing if they cannot be read."""
    if previews.reads_stores:
        value = _without_store(value, batch_dims)
    if not _is_readable(value):
        return ""
    value = value.detach()
    if isinstance(value, MemoryMappedTensor):
        value = value.as_subclass(torch.Tensor)
    parts = []
    images = _images(value, batch_dims) if previews.images else []
    # Look for the library only if there are images: that searches the path.
    if images and importlib.util.find_spec("PIL"):
        parts += [_image_element(image) for image in images]
    if 0 < value.numel() <= VALUES_SHOWN and value.device.type == "cpu":
        parts.append(_note(_cut(str(value.tolist()))))
    if previews.histograms and value.numel() > VALUES_SHOWN:
        parts.append(_histogram(value))
    return "".join(parts)


def _without_store(value: torch.Tensor, batch_dims: int) -> torch.Tensor:
    """Read the rows of a remote tensor that a preview needs; return others as they are."""
    from tensordict.storage.remote.tensor import RemoteTensor

    if not isinstance(value, RemoteTensor):
        return value
    if value.numel() <= VALUES_SHOWN:
        return value.read()
    is_image = value.dtype is torch.uint8 and value.dim() - batch_dims in (2, 3)
    return value[:IMAGES_SHOWN] if is_image and batch_dims else value


READ_CLASSES: Final = (
    torch.Tensor,
    MemoryMappedTensor,
    torch.nn.Parameter,
    torch.nn.Buffer,
)


def _is_readable(value: torch.Tensor) -> bool:
    """Return whether a leaf has plain values in memory, not traced or transformed."""
    return (
        type(value) in READ_CLASSES
        and value.layout is torch.strided
        and not value.is_nested
        and not value.is_meta
        and not torch._C._functorch.is_functorch_wrapped_tensor(value)
    )


def _images(value: torch.Tensor, batch_dims: int) -> list[torch.Tensor]:
    """Return the first rows as images ``[H, W, C]``; none if they are no images."""
    feature_shape = value.shape[batch_dims:]
    if (
        value.dtype is not torch.uint8
        or len(feature_shape) not in (2, 3)
        or not value.numel()
    ):
        return []
    rows = value
    for _ in range(batch_dims - 1):  # read the first rows only
        rows = rows[0]
    rows = rows[:IMAGES_SHOWN] if batch_dims else rows[None]
    if len(feature_shape) == 2:
        rows = rows[..., None]
    elif feature_shape[-1] not in (1, 3, 4):
        rows = rows.movedim(1, -1)
    *_, height, width, channels = rows.shape
    if channels not in (1, 3, 4) or min(height, width) < 8:
        return []
    step = -(-max(height, width) // IMAGE_SIDE)
    return list(rows[:, ::step, ::step].cpu())


def _image_element(image: torch.Tensor) -> str:
    """Return an image ``[H, W, C]`` as an element that embeds its pixels."""
    from PIL import Image

    picture = Image.fromarray(image.squeeze(-1).numpy())
    file = io.BytesIO()
    picture.save(file, "PNG")
    data = base64.b64encode(file.getvalue()).decode()
    return f'<img alt="" src="data:image/png;base64,{data}">'


def _histogram(value: torch.Tensor) -> str:
    """Return the bars of the finite values, with their range as a title."""
    flat = value.reshape(-1)
    step = max(1, flat.numel() // HISTOGRAM_SAMPLE)
    if value.is_complex():
        return ""
    sample = flat[::step].to("cpu", torch.float64)
    sample = sample[sample.isfinite()]
    if not sample.numel():
        return ""
    low, high = sample.min().item(), sample.max().item()
    counts = torch.histc(sample, HISTOGRAM_BARS, low, high)
    heights = (16 * counts / counts.max().clamp(min=1)).tolist()
    bars = "".join(
        f'<rect x="{3 * at}" y="{16 - height:.1f}" width="2" height="{height:.1f}"/>'
        for at, height in enumerate(heights)
    )
    size = f'width="{3 * HISTOGRAM_BARS}" height="16"'
    return f"<svg {size}><title>{low:.4g} to {high:.4g}</title>{bars}</svg>"
