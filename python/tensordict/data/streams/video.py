"""A stream of the frames of a video file."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

DECODERS = ("torchcodec", "av")
"""The modules that decode videos, in the order of preference."""

MSG_DECODER = "decoder must be None, 'torchcodec' or 'av', got {!r}."
MSG_MISSING = {
    "av": "Reading videos needs PyAV: pip install 'tensordict-rs[video]'.",
    "torchcodec": "decoder='torchcodec' needs torchcodec and the libraries of FFmpeg: "
    "pip install torchcodec",
}


class VideoStream:
    """The frames of a video, several at a time: uint8 tensors ``[T, height, width, 3]``.

    Use it as the streamer of a :class:`StreamDataset`: ``lambda path: VideoStream(path,
    8)``. The last item is padded with black frames. It needs PyAV
    (``tensordict-rs[video]``) or torchcodec.

    Args:
        path: the file.
        num_frames: the number of frames of an item.
        height: the height of the frames. Default: the height of the video.
        width: the width of the frames. Default: the width of the video.
        decoder: ``"torchcodec"`` or ``"av"``. Default: torchcodec if it is installed
            and finds FFmpeg, else PyAV. Both return the same frames, unless frames are
            scaled: the methods of scaling differ.

    Raises:
        ValueError: the number of frames is not positive, or there is no such decoder.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        num_frames: int = 1,
        height: int | None = None,
        width: int | None = None,
        decoder: str | None = None,
    ) -> None:
        if num_frames < 1:
            msg = f"num_frames must be positive, got {num_frames}."
            raise ValueError(msg)
        if decoder is not None and decoder not in DECODERS:
            raise ValueError(MSG_DECODER.format(decoder))
        self.path: str = os.fspath(path)
        self.num_frames: int = num_frames
        self.height: int | None = height
        self.width: int | None = width
        self.decoder: str | None = decoder
        self._skipped = 0

    def skip(self, count: int) -> None:
        """Begin the next iteration ``count`` items later, without converting frames."""
        self._skipped = count

    def __iter__(self) -> Iterator[torch.Tensor]:
        first, self._skipped = self._skipped * self.num_frames, 0
        codec = self._torchcodec()
        chunks = self._by_av(first) if codec is None else self._by_codec(codec, first)
        for frames in chunks:
            missing = self.num_frames - len(frames)
            if missing:
                black = frames.new_zeros(missing, *frames.shape[1:])
                frames = torch.cat([frames, black])
            yield frames

    def _torchcodec(self) -> Any:
        """Return torchcodec's decoder if it is chosen or available; None for PyAV.

        Raises:
            ImportError: torchcodec is chosen, and not available.
        """
        if self.decoder == "av":
            return None
        try:
            from torchcodec.decoders import VideoDecoder
        except (ImportError, OSError, RuntimeError) as error:
            # Without FFmpeg, torchcodec raises a RuntimeError.
            if self.decoder == "torchcodec":
                raise ImportError(MSG_MISSING["torchcodec"]) from error
            return None
        return VideoDecoder

    def _by_codec(self, decoder: Any, first: int) -> Iterator[torch.Tensor]:
        frames = decoder(self.path, dimension_order="NCHW")
        for start in range(first, len(frames), self.num_frames):
            stop = min(start + self.num_frames, len(frames))
            part: torch.Tensor = frames.get_frames_in_range(start, stop).data
            size = (self.height or part.shape[-2], self.width or part.shape[-1])
            if size != tuple(part.shape[-2:]):
                part = torch.nn.functional.interpolate(
                    part, size, mode="bilinear", antialias=True
                )
            yield part.permute(0, 2, 3, 1).contiguous()

    def _by_av(self, first: int) -> Iterator[torch.Tensor]:
        try:
            import av
            from av.video.reformatter import VideoReformatter
        except ImportError as error:
            raise ImportError(MSG_MISSING["av"]) from error
        # PyAV's own reformatter is shared. Its threads do not exist in a process that
        # was forked after the first use.
        reformatter: Any = VideoReformatter()
        container: Any
        with av.open(self.path) as container:
            frames: list[torch.Tensor] = []
            for number, frame in enumerate(container.decode(video=0)):
                if number < first:
                    continue
                scaled = reformatter.reformat(
                    frame, width=self.width, height=self.height, format="rgb24"
                )
                frames.append(torch.from_numpy(scaled.to_ndarray()))
                if len(frames) == self.num_frames:
                    yield torch.stack(frames)
                    frames = []
            if frames:
                yield torch.stack(frames)
