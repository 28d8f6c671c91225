"""Support for :func:`torch.compile`: rules for Dynamo and twins of primitives."""
