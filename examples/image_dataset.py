"""Write a dataset of images to files, and train a classifier on it.

Draws small pictures of four shapes, writes them row by row to a dataset on disk, trains on
shuffled batches of it, and saves a checkpoint after each epoch. The training is then
"killed" and resumes from its last checkpoint. Prints a table of correct predictions.
"""

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tensordict import TensorDict
from tensordict.checkpoint import Checkpointer
from tensordict.data import BatchLoader, DatasetWriter
from tensordict.nn import TensorDictModule, TensorDictSequential

SHAPES = ("disc", "ring", "square", "cross")
SIDE = 16


def draw(shape: str, generator: torch.Generator) -> torch.Tensor:
    """Draw one shape at a random place in a noisy picture, uint8 [SIDE, SIDE]."""
    centre = torch.randint(6, SIDE - 6, (2, 1, 1), generator=generator)
    rows, columns = torch.meshgrid(
        torch.arange(SIDE), torch.arange(SIDE), indexing="ij"
    )
    down, right = (rows - centre[0]).abs(), (columns - centre[1]).abs()
    distance = (down**2 + right**2).float().sqrt()
    inside = {
        "disc": distance < 4.5,
        "ring": (distance < 5) & (distance > 2.8),
        "square": (down < 4) & (right < 4),
        "cross": (torch.minimum(down, right) < 1) & (torch.maximum(down, right) < 5),
    }[shape]
    noise = torch.rand(SIDE, SIDE, generator=generator)
    return ((0.6 * inside + 0.4 * noise) * 255).to(torch.uint8)


def samples(count: int, seed: int) -> Iterator[dict[str, object]]:
    """Yield the rows of a dataset, one at a time."""
    generator = torch.Generator().manual_seed(seed)
    for number in range(count):
        label = number % len(SHAPES)
        image = draw(SHAPES[label], generator)
        yield {"image": image, "label": label, "name": f"{SHAPES[label]} {number}"}


def write(path: Path, count: int, seed: int) -> TensorDict:
    """Write a dataset and open it: rows stay on disk until they are indexed."""
    with DatasetWriter(path) as writer:
        for row in samples(count, seed):
            writer.append(row)
    return TensorDict.load_memmap(path)


def new_model() -> TensorDictSequential:
    """Make a model whose parts read and write entries by name."""
    features = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
    )
    return TensorDictSequential(
        TensorDictModule(
            lambda image: image[:, None].float() / 255, ["image"], ["pixels"]
        ),
        TensorDictModule(features, ["pixels"], ["features"]),
        TensorDictModule(nn.Linear(16 * (SIDE // 4) ** 2, 4), ["features"], ["logits"]),
    )


def train(path: Path, data: TensorDict, epochs: int) -> TensorDictSequential:
    """Train up to ``epochs``, from the last checkpoint if there is one."""
    torch.manual_seed(0)
    model = new_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    loader = BatchLoader(
        data, batch_size=64, shuffle=True, seed=0, keys=["image", "label"]
    )
    items: dict[str, Any] = {"model": model, "optimizer": optimizer, "loader": loader}
    # `durable=False`: a kill loses nothing, a power failure may lose the last step.
    checkpointer = Checkpointer(path, keep=2, durable=False)
    first = 0
    if checkpointer.latest() is not None:
        first = checkpointer.restore(**items)["epochs"]
        print(f"goes on after epoch {first}")
    for epoch in range(first, epochs):
        total = 0.0
        for batch in loader:
            logits = model(batch)["logits"]
            loss = nn.functional.cross_entropy(logits, batch["label"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(batch)
        print(f"epoch {epoch + 1}: loss {total / len(data):.3f}")
        checkpointer.save(epoch + 1, epochs=epoch + 1, **items)
    return model


def main() -> float:
    """Write, train, resume, and return the accuracy on new pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=800)
    parser.add_argument("--epochs", type=int, default=6)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        data = write(Path(folder, "train"), arguments.rows, seed=1)
        size = data["image"].numel() / 1e6
        print(
            f"{len(data)} rows, {size:.1f} MB of pixels, the first: {data[0]['name']}"
        )
        train(Path(folder, "run"), data, arguments.epochs // 2)
        model = train(Path(folder, "run"), data, arguments.epochs)
        test = write(Path(folder, "test"), 200, seed=2)
        with torch.no_grad():
            guesses = model(test[:].select("image"))["logits"].argmax(-1)
    labels = test["label"]
    print("\n          " + "".join(f"{shape:>8}" for shape in SHAPES))
    for label, shape in enumerate(SHAPES):
        counts = guesses[labels == label].bincount(minlength=len(SHAPES)).tolist()
        print(f"{shape:>8}: " + "".join(f"{count:8}" for count in counts))
    accuracy = float((guesses == labels).float().mean())
    print(f"\nright: {accuracy:.1%}")
    return accuracy


if __name__ == "__main__":
    main()
