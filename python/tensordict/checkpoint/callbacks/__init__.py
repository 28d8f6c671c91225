"""Callbacks that save and restore steps in the training loops of other libraries.

``tensordict.checkpoint.callbacks.lightning``, ``.transformers`` and ``.accelerate``
import their library. ``import tensordict`` imports none of these modules.
"""
