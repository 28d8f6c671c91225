"""A container against a plain model, through any sequence of sets, locks and indices."""

from __future__ import annotations

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tensordict import TensorDict

KEYS = st.sampled_from(["a", "b", "n", ("n", "a"), ("n", "m"), ("n", "m", "a")])
ROWS = 4


def value_of(number: int) -> torch.Tensor:
    """A leaf that says when it was made."""
    return torch.arange(ROWS) + 10 * number


class Container(RuleBasedStateMachine):
    """The model is a dictionary from flat paths to lists of numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.td = TensorDict(batch_size=[ROWS])
        self.model: dict[tuple[str, ...], list[int]] = {}
        self.locked = False
        self.clock = 0

    def tick(self) -> torch.Tensor:
        self.clock += 1
        return value_of(self.clock)

    @staticmethod
    def path(key) -> tuple[str, ...]:
        return (key,) if isinstance(key, str) else key

    def below(self, path) -> list[tuple[str, ...]]:
        return [other for other in self.model if other[: len(path)] == path]

    def through_leaf(self, path) -> bool:
        return any(path[:end] in self.model for end in range(1, len(path)))

    @rule(key=KEYS)
    def set(self, key):
        path, value = self.path(key), self.tick()
        if self.through_leaf(path):
            with pytest.raises(KeyError):
                self.td.set(key, value)
        elif self.locked:
            with pytest.raises(RuntimeError):
                self.td.set(key, value)
        else:
            self.td.set(key, value)
            for other in self.below(path):
                del self.model[other]
            self.model[path] = value.tolist()

    @rule(key=KEYS)
    def set_in_place(self, key):
        path, value = self.path(key), self.tick()
        if path in self.model:
            leaf = self.td.get(key)
            self.td.set_(key, value)
            assert self.td.get(key) is leaf
            self.model[path] = value.tolist()

    @rule(key=KEYS)
    def set_wrong_size(self, key):
        with pytest.raises((RuntimeError, KeyError)):
            self.td.set(key, torch.zeros(ROWS + 1))

    @rule(key=KEYS)
    def delete(self, key):
        path = self.path(key)
        if self.locked or key not in self.td:
            with pytest.raises((RuntimeError, KeyError, ValueError)):
                self.td.del_(key)
            return
        self.td.del_(key)
        for other in self.below(path):
            del self.model[other]

    @rule(key=KEYS, new=st.sampled_from(["b", "z", ("n", "z"), ("k", "z")]))
    def rename(self, key, new):
        path, target = self.path(key), self.path(new)
        fits = key in self.td and not self.locked
        if not fits or (self.through_leaf(target) and target[: len(path)] != path):
            with pytest.raises((RuntimeError, KeyError, ValueError)):
                self.td.rename_key_(key, new)
            return
        if path == target:
            return
        self.td.rename_key_(key, new)
        moved = {other: self.model[other] for other in self.below(path)}
        for other in moved:
            del self.model[other]
        for other in self.below(target):
            del self.model[other]
        for other, values in moved.items():
            self.model[target + other[len(path) :]] = values

    @rule(keys=st.lists(KEYS, max_size=3))
    def update(self, keys):
        source = {}
        for key in keys:
            source[key] = self.tick()
        copy = self.td.clone(False)
        try:
            copy.update(source)
        except (RuntimeError, KeyError):
            with pytest.raises((RuntimeError, KeyError)):
                self.td.update(source)
            return
        if self.locked:
            with pytest.raises(RuntimeError):
                self.td.update(source)
            return
        self.td.update(source)
        for key, value in source.items():
            path = self.path(key)
            for other in self.below(path):
                del self.model[other]
            self.model[path] = value.tolist()

    @rule(row=st.integers(-ROWS, ROWS - 1))
    def write_a_row(self, row):
        self.clock += 1
        self.td[row] = self.clock
        for values in self.model.values():
            values[row] = self.clock

    @rule(start=st.integers(0, ROWS), stop=st.integers(0, ROWS))
    def read_rows(self, start, stop):
        rows = self.td[start:stop]
        assert rows.batch_size == torch.Size([max(0, stop - start)])
        for path, values in self.model.items():
            assert rows[path].tolist() == values[start:stop]

    @rule()
    def lock(self):
        self.td.lock_()
        self.locked = True

    @rule()
    def unlock(self):
        self.td.unlock_()
        self.locked = False

    @precondition(lambda self: not self.locked)
    @rule()
    def block(self):
        value = self.tick()
        with self.td.view(2, 2) as view:
            view["v"] = value.view(2, 2)
        for other in self.below(("v",)):
            del self.model[other]
        self.model[("v",)] = value.tolist()

    @rule()
    def flatten_and_back(self):
        self.td = self.td.flatten_keys("/").unflatten_keys("/")
        self.locked = False

    @invariant()
    def holds_what_the_model_holds(self):
        found = {
            self.path(key): leaf.tolist() for key, leaf in self.td.items(True, True)
        }
        assert found == self.model

    @invariant()
    def lock_reaches_everything(self):
        assert self.td.is_locked is self.locked
        for value in self.td.values(True):
            if isinstance(value, TensorDict):
                assert value.is_locked is self.locked

    @invariant()
    def sizes_fit(self):
        for value in self.td.values(True):
            assert value.shape[:1] == torch.Size([ROWS])


TestContainer = Container.TestCase
TestContainer.settings = settings(
    max_examples=40, stateful_step_count=30, deadline=None
)
