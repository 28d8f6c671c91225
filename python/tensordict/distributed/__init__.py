"""Collections between processes: ``torch.distributed``, and what all messages are made of.

- :mod:`~tensordict.distributed.calls` is what the methods of collections call; start there;
- :mod:`~tensordict.distributed.in_place` sends the leaves of a collection to those of one like
  it, :mod:`~tensordict.distributed.whole` a collection to who knows nothing of it, and
  :mod:`~tensordict.distributed.reducing` reduces;
- :mod:`~tensordict.distributed.plans` says in which order the leaves of a structure go, and
  which of them together;
- :mod:`~tensordict.distributed.channels` is a partner in a process group, and what runs in the
  background;
- :mod:`~tensordict.distributed.published` has the messages of tensordict 0.15, and
  :mod:`~tensordict.distributed.tags` the tags of them;
- :mod:`~tensordict.distributed.wire` describes a collection in bytes, and makes it again from
  bytes that somebody else has sent.
"""
