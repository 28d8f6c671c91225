"""Predict the next frame of videos, which are streamed side by side in the rows of a batch.

Makes short videos of a bouncing ball, of different lengths. Streams them so that each row
of a batch continues its video, and trains a small recurrent network that keeps its state
from batch to batch. Prints the schedule of videos over the rows, the loss of each epoch,
and a frame beside its prediction.

The videos are arrays in files here, so that no package has to be installed.
``tensordict.data.VideoStream`` reads mp4 files in place of ``Frames``.
"""

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import nn

from tensordict import TensorDict
from tensordict.data import StreamDataLoader, picture_of_rows
from tensordict.nn import TensorDictModule

SIDE, ROWS = 8, 4
LEVELS = " .:*#"


def write_video(path: Path, frames: int, seed: int) -> None:
    """Write a video of a bouncing ball as an array, uint8 [frames, SIDE, SIDE]."""
    generator = np.random.default_rng(seed)
    place = generator.integers(1, SIDE - 1, 2)
    step = generator.choice([-1, 1], 2)
    grid = np.stack(np.meshgrid(range(SIDE), range(SIDE), indexing="ij"), -1)
    video = np.empty((frames, SIDE, SIDE), np.uint8)
    for frame in range(frames):
        step = np.where((place + step < 0) | (place + step >= SIDE), -step, step)
        place = place + step
        away = ((grid - place) ** 2).sum(-1)
        video[frame] = (255 * np.exp(-away)).astype(np.uint8)
    np.save(path, video)


class Frames:
    """The frames of one video. A loader opens it when a row is free."""

    def __init__(self, path: Path) -> None:
        self.video = np.load(path, mmap_mode="r")

    def __iter__(self) -> Iterator[TensorDict]:
        """Yield each frame but the last, together with the next frame."""
        for now, following in zip(self.video, self.video[1:], strict=False):
            both = torch.from_numpy(np.stack([now, following])).float() / 255
            yield TensorDict(frame=both[0], target=both[1])


class Predictor(nn.Module):
    """A recurrent network from a frame and a state to the next frame and a state."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.cell = nn.GRUCell(SIDE * SIDE, width)
        self.out = nn.Linear(width, SIDE * SIDE)

    def forward(
        self, frame: torch.Tensor, state: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Predict for a batch, ``frame`` [rows, SIDE, SIDE], ``state`` [rows, width]."""
        state = self.cell(frame.flatten(1), state)
        return self.out(state).view_as(frame), state


def train_epoch(
    loader: StreamDataLoader,
    model: TensorDictModule,
    optimizer: torch.optim.Optimizer,
    width: int,
) -> tuple[float, TensorDict]:
    """Go once through all videos; return the mean loss and the last full batch."""
    losses, window, kept = [], [], TensorDict()
    state = torch.zeros(ROWS, width)
    for batch in loader:
        # Reset the state of rows whose video has just begun.
        batch["state"] = state * ~batch["reset"][:, None]
        batch = model(batch)
        state, valid = batch["state"], batch["valid"]
        if valid.any():
            window.append((batch["guess"] - batch["target"])[valid].square().mean())
        if valid.all():
            kept = batch.select("frame", "target", "guess").detach()
        if len(window) == 4:  # Gradients flow back over four frames.
            loss = torch.stack(window).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            window, state = [], state.detach()
    return sum(losses) / len(losses), kept


def picture(frames: list[torch.Tensor]) -> str:
    """Draw frames side by side with characters, dark to bright."""
    joined = torch.cat([nn.functional.pad(frame, (0, 2)) for frame in frames], 1)
    shades = (joined.clamp(0, 1) * (len(LEVELS) - 1)).round().long()
    return "\n".join("".join(LEVELS[shade] for shade in row) for row in shades.tolist())


def main() -> list[float]:
    """Make videos, train, and return the loss of each epoch."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--videos", type=int, default=12)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--width", type=int, default=96)
    parser.add_argument("--workers", type=int, default=0)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    model = TensorDictModule(
        Predictor(arguments.width), ["frame", "state"], ["guess", "state"]
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder, f"{n}.npy") for n in range(arguments.videos)]
        for number, path in enumerate(paths):
            write_video(path, frames=12 + 3 * (number % 4), seed=number)
        loader = StreamDataLoader(
            paths,
            Frames,
            batch_size=ROWS,
            padding_mode="zeros",
            shuffle=True,
            seed=0,
            num_workers=arguments.workers,
        )
        print("rows over time, a letter for each video:")
        print(picture_of_rows(loader))
        losses, last = [], TensorDict()
        for epoch in range(arguments.epochs):
            loss, last = train_epoch(loader, model, optimizer, arguments.width)
            losses.append(loss)
            print(f"epoch {epoch + 1:2}: loss {loss:.4f}")
    print("\nframe, next frame, prediction of the next frame:")
    row = last[0]
    print(picture([row["frame"], row["target"], row["guess"]]))
    return losses


if __name__ == "__main__":
    main()
