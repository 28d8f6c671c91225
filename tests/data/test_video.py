"""Frames of real video files, by each decoder."""

import sys

import numpy as np
import pytest
import torch

from tensordict.data import StreamDataLoader, VideoStream

av = pytest.importorskip("av")


def encode(path, levels, *, height=48, width=64):
    """Write a video whose frames are grey, of one level each."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=10)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for level in levels:
            array = np.full((height, width, 3), level, dtype=np.uint8)
            frame = av.VideoFrame.from_ndarray(array, format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


def levels_of(frames):
    """The grey level of each frame, to the next ten: codecs lose some."""
    return [10 * round(float(frame.float().mean()) / 10) for frame in frames]


@pytest.fixture(params=["av", "torchcodec"])
def decoder(request):
    if request.param == "torchcodec":
        try:
            import torchcodec.decoders  # noqa: F401
        except (ImportError, OSError, RuntimeError) as error:
            pytest.skip(f"torchcodec is not there: {error}")
    return request.param


@pytest.fixture
def video(tmp_path):
    return encode(tmp_path / "one.mp4", [10, 50, 100, 150, 200])


def test_frames_come_in_items(video, decoder):
    items = list(VideoStream(video, 2, decoder=decoder))
    assert [item.shape for item in items] == [(2, 48, 64, 3)] * 3
    assert all(item.dtype == torch.uint8 for item in items)
    assert all(item.is_contiguous() for item in items)
    assert levels_of(torch.cat(items)) == [10, 50, 100, 150, 200, 0]
    assert len(list(VideoStream(str(video), decoder=decoder))) == 5


def test_frames_are_scaled(video, decoder):
    frames = next(iter(VideoStream(video, 5, 24, 32, decoder=decoder)))
    assert frames.shape == (5, 24, 32, 3)
    assert levels_of(frames) == [10, 50, 100, 150, 200]
    assert next(iter(VideoStream(video, height=24, decoder=decoder))).shape[1:3] == (
        24,
        64,
    )


def test_items_are_skipped(video, decoder):
    stream = VideoStream(video, 2, decoder=decoder)
    stream.skip(1)
    assert levels_of(torch.cat(list(stream))) == [100, 150, 200, 0]
    assert len(list(stream)) == 3
    stream.skip(9)
    assert list(stream) == []


def test_decoders_give_the_same_frames(video):
    pytest.importorskip("torchcodec", exc_type=(ImportError, RuntimeError, OSError))
    one, other = (
        list(VideoStream(video, 2, decoder=name)) for name in ("av", "torchcodec")
    )
    assert all(map(torch.equal, one, other))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_has_a_video_in_each_row(tmp_path, decoder, workers):
    files = [
        encode(tmp_path / "a.mp4", [10, 50, 100]),
        encode(tmp_path / "b.mp4", [200, 150]),
        encode(tmp_path / "c.mp4", [100]),
    ]
    loader = StreamDataLoader(
        files,
        lambda path: VideoStream(path, 1, decoder=decoder),
        2,
        num_workers=workers,
        padding_mode="zeros",
    )
    found = [levels_of(batch["data"]) for batch in loader]
    assert found == [[10, 200], [50, 150], [100, 100]]


def test_a_loader_goes_on_in_the_middle_of_a_video(video, decoder):
    def make():
        return StreamDataLoader(
            [video], lambda path: VideoStream(path, 1, decoder=decoder), 1
        )

    loader = make()
    batches = iter(loader)
    for _ in range(2):
        next(batches)
    state = loader.state_dict()
    del batches
    later = make()
    later.load_state_dict(state)
    assert [levels_of(batch["data"]) for batch in later] == [[100], [150], [200]]


def test_what_is_refused(video, tmp_path, decoder):
    with pytest.raises(ValueError, match="positive"):
        VideoStream(video, 0)
    with pytest.raises(ValueError, match="'torchcodec' or 'av', got 'cv2'"):
        VideoStream(video, decoder="cv2")
    (tmp_path / "no.mp4").write_bytes(b"nothing")
    with pytest.raises(Exception, match=r"no\.mp4|[Ii]nvalid"):
        next(iter(VideoStream(tmp_path / "no.mp4", decoder=decoder)))


def test_without_a_decoder_the_error_says_what_to_install(video, monkeypatch):
    monkeypatch.setitem(sys.modules, "torchcodec.decoders", None)
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(ImportError, match=r"tensordict-rs\[video\]"):
        next(iter(VideoStream(video)))
    with pytest.raises(ImportError, match="pip install torchcodec"):
        next(iter(VideoStream(video, decoder="torchcodec")))
