"""Support :func:`torch.compile`: rules for Dynamo, registration of the primitives."""
