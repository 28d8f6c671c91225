"""Checkpointers in the training loops of others: a module for each library.

``tensordict.checkpoint.callbacks.lightning``, ``.transformers`` and ``.accelerate`` import
their library; nothing here is imported with ``tensordict``.
"""
