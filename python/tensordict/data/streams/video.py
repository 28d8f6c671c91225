"""A stream of the frames of a video file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator


class VideoStream:
    """The frames of a video, some at a time: uint8 tensors ``[T, height, width, 3]``.

    It is a streamer of :class:`StreamDataset`: ``lambda path: VideoStream(path, 8)``. The
    last item is filled with black frames. It needs PyAV: ``tensordict-rs[video]``.

    Args:
        path: the file.
        num_frames: how many frames an item has.
        height: the height of the frames, or that of the video.
        width: the width of the frames, or that of the video.
    """

    def __init__(
        self,
        path: str,
        num_frames: int = 1,
        height: int | None = None,
        width: int | None = None,
    ) -> None:
        self.path = path
        self.num_frames = num_frames
        self.height = height
        self.width = width

    def __iter__(self) -> Iterator[torch.Tensor]:
        try:
            import av
        except ImportError as error:
            raise ImportError(
                "Reading videos needs PyAV: pip install 'tensordict-rs[video]'."
            ) from error
        container: Any
        with av.open(self.path) as container:
            frames: list[torch.Tensor] = []
            for frame in container.decode(video=0):
                array = frame.to_ndarray(
                    format="rgb24", width=self.width, height=self.height
                )
                frames.append(torch.from_numpy(array))
                if len(frames) == self.num_frames:
                    yield torch.stack(frames)
                    frames = []
            if frames:
                missing = self.num_frames - len(frames)
                yield torch.stack([*frames, *[torch.zeros_like(frames[0])] * missing])
