"""Annotations that are no text: read at once, or from Python 3.14 when asked for."""

import sys

import pytest
import torch

from tensordict import TensorClass, TypedTensorDict, tensorclass

IS_DEFERRED = sys.version_info >= (3, 14)


class Leaf(TensorClass):
    value: torch.Tensor
    weight: float = 1.0


@tensorclass
class Tree:
    left: Leaf
    right: Leaf | None = None


class Schema(TypedTensorDict):
    x: torch.Tensor


def test_types_are_read():
    leaf = Leaf(value=torch.zeros(2), batch_size=[2])
    tree = Tree.from_dict({"left": {"value": torch.ones(2)}, "right": leaf})
    assert type(tree.left) is Leaf
    assert tree.right.weight == 1.0
    assert Schema.__expected_keys__ == {"x"}


@pytest.mark.skipif(not IS_DEFERRED, reason="annotations are evaluated at once")
def test_a_class_may_name_itself_and_later_ones():
    class Node(TensorClass):
        x: torch.Tensor
        following: Node | None = None  # noqa: F821 - evaluated when it is there
        other: Later | None = None  # noqa: F821

    class Declared(TypedTensorDict):
        x: torch.Tensor
        y: Later  # noqa: F821

    class Later(TensorClass):
        x: torch.Tensor

    entries = {"x": torch.zeros(3), "following": {"x": torch.ones(3)}}
    node = Node.from_dict(entries, batch_size=[3])
    assert type(node.following) is Node
    assert (node[0].following.x == 1).all()
    assert Declared.__expected_keys__ == {"x", "y"}
