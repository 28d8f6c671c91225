"""The native primitives in plain Python: what Dynamo traces, the fallback, and the oracle.

Each stem in :data:`STEMS` is a file here and one in ``rust/tensordict-python/src``: the
functions of ``tensordict._rust`` that the Rust file defines have their namesakes, with
the same positional parameters, in the Python file. What the native code does not do
itself it leaves to the function here. The other files of this folder hold what both the
primitives and the public methods need: the protocol of a collection, conversions of
values, indices, messages.

:mod:`tensordict.compile.registration` registers the pairs with
:func:`torch.compiler.substitute_in_graph`, and a property test holds them equal. So the
code must be simple enough for Dynamo: plain loops over plain dictionaries. What it costs
to compile is the instructions traced, and what a compiled call costs beside the torch
calls is mostly the guards. Hence conditions that do not change stand before loops, and
no function is called where its result is known. What costs, in calls of Python: a
function that is entered 1,000, and 250 each further time, with two for each of its
instructions; a call of a built-in function 200, and 300 more the first time; an
attribute of a collection 120 to 600; a global 20 to 60; any other instruction 15 to 70.

A loop that only calls something with each leaf is :func:`.leaf_loops.on_plain`, which
the compiler does not interpret. :func:`.leaf_loops.special_keys` tells in one step what
there is besides plain tensors: what holds others, or is no ordinary tensor, takes part
in torch's functions. Of a plain tensor that is only passed on nothing else may be asked:
it then costs next to nothing.

In all of them ``k`` is the number of batch dims of the root of the walk (-1: this
collection is the root). A nested tensordict has at least the dims of its parent, so a
walk that turns the root's batch size into ``prefix`` turns a nested one into
``prefix + nested.batch_size[k:]``; one that was given fewer dims than the root keeps as
many where the others stay in their places. Names follow the same rule.
"""

import os

STEMS = (
    "access",
    "align",
    "apply",
    "copy",
    "dims",
    "fields",
    "foreach",
    "gather",
    "index",
    "items",
    "join",
    "key_views",
    "keys",
    "lazy",
    "lock",
    "map_leaves",
    "modules",
    "nested_key",
    "set",
    "split",
    "tree",
    "update",
)
"""The files that exist in Rust and in Python."""

if _setting := os.environ.get("TENSORDICT_NATIVE"):
    from tensordict.primitives.left_out import leave_out

    leave_out(_setting, STEMS)
