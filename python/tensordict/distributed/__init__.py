"""Collections between processes: what messages are made of.

- :mod:`~tensordict.distributed.wire` describes a collection in bytes, and makes it again from
  bytes that somebody else has sent.
"""
