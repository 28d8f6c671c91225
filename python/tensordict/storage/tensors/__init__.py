"""Tensors over mapped files and shared memory."""
