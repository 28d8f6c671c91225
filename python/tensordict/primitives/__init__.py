"""The native primitives in plain Python: for Dynamo, as a fallback, and as a reference.

Each stem in :data:`STEMS` is a file here and a file in ``rust/tensordict-python/src``.
For each function of ``tensordict._rust`` that the Rust file defines, the Python file
has a function of the same name with the same positional parameters. The native code
calls the Python function for cases that it does not handle. The other files of this
folder contain code that both the primitives and the public methods need: the protocol
of a tensordict, conversions of values, indices, messages.

:mod:`tensordict.compile.registration` registers the pairs with
:func:`torch.compiler.substitute_in_graph`, and a property test holds them equal. So the
code must be simple enough for Dynamo: plain loops over plain dictionaries. Compilation
time grows with the traced instructions; a compiled call costs, besides the torch calls,
mostly the guards. Hence invariant conditions stand before loops, and no function is
called if its result is known. Costs in calls of Python: the first entry of a function
1,000, each further one 250, plus two for each of its instructions; the first call of a
built-in function 500, each further one 200; an attribute of a tensordict 120 to 600; a
global 20 to 60; any other instruction 15 to 70.

A loop that only calls an operation on each leaf is :func:`.leaf_loops.on_plain`, which
the compiler does not interpret. :func:`.leaf_loops.special_keys` finds the keys of
nested tensordicts and special tensors in one step: they take part in torch's functions.
Ask nothing else of a plain tensor that is only passed on: it then costs almost nothing.

In all primitives ``k`` is the number of batch dims of the root of the walk (-1: this
tensordict is the root). A nested tensordict has at least the dims of its parent, so a
walk that turns the root's batch size into ``prefix`` turns a nested one into
``prefix + nested.batch_size[k:]``. A nested tensordict that was given fewer dims than
the root keeps the same number if the other dims stay in their places. Names follow the
same rule.
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
