"""Lua scripts, each of which a Redis server runs as one atomic command."""

from __future__ import annotations

from typing import Any

__all__ = ["DESCRIBE", "RENAME", "WRITE_PIECES", "get_pieces"]

_DESCRIBE = """--!df flags=allow-undeclared-keys
local function describe()
    local entries = {}
    for _, path in ipairs(redis.call('SMEMBERS', KEYS[1])) do
        entries[#entries + 1] = path
        entries[#entries + 1] = redis.call('HGETALL', KEYS[3] .. path)
    end
    return cjson.encode({entries, redis.call('HGETALL', KEYS[2])})
end
"""
DESCRIBE = _DESCRIBE + "return describe()"
"""The script that describes all entries: their hashes, as one JSON text."""

WRITE_PIECES = (
    _DESCRIBE
    + """
local found = describe()
if found ~= ARGV[1] then return found end
for i = 2, #ARGV, 3 do
    redis.call('SETRANGE', ARGV[i], tonumber(ARGV[i + 1]), ARGV[i + 2])
end
return 0
"""
)
"""The script that writes pieces of entries if the entries are as the caller expects."""

GET_PIECES = """--!df flags=allow-undeclared-keys
local parts = {}
for i = 1, #ARGV, 2 do
    local first = tonumber(ARGV[i])
    parts[#parts + 1] = redis.call('GETRANGE', KEYS[1], first, first + ARGV[i + 1] - 1)
end
return table.concat(parts)
"""
"""The script that reads several pieces of one entry as one string."""

RENAME = """--!df flags=allow-undeclared-keys
for i = 1, #ARGV, 2 do
    if redis.call('EXISTS', ARGV[i]) == 1 then
        redis.call('RENAME', ARGV[i], ARGV[i + 1])
    end
end
return 0
"""
"""The script that renames existing keys. Running it twice is the same as once."""


def get_pieces(key: str, pieces: list[tuple[int, int]]) -> tuple[Any, ...]:
    """Make the command that reads pieces of a string: pairs of first byte and count."""
    if len(pieces) == 1:
        first, count = pieces[0]
        return ("GETRANGE", key, first, first + count - 1)
    return ("EVAL", GET_PIECES, 1, key, *(part for piece in pieces for part in piece))
