"""What only :func:`torch.compile` needs: rules for Dynamo, and the registration of primitives."""
