"""Collections between processes, over ``torch.distributed`` or over pipes.

Start with :mod:`~tensordict.distributed.calls`: the methods of collections call this module.

- :mod:`~tensordict.distributed.in_place` sends leaves into the leaves of a collection of the same
  structure. :mod:`~tensordict.distributed.whole` sends a collection to a rank that has no buffer
  for it. :mod:`~tensordict.distributed.reducing` reduces.
- :mod:`~tensordict.distributed.plans` decides the order of the leaves of a structure, and which
  leaves are packed together.
- :mod:`~tensordict.distributed.channels` holds a channel to one rank of a process group, and
  transfers in the background.
- :mod:`~tensordict.distributed.published` holds the messages of tensordict 0.15,
  :mod:`~tensordict.distributed.tags` their tags.
- :mod:`~tensordict.distributed.wire` describes a collection in bytes, and builds a collection from
  bytes that a peer has sent.
- :mod:`~tensordict.distributed.pipes` sends collections between two processes without a process
  group.
"""
