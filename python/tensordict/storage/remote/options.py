"""Make the store of a URL with the options of ``obstore``."""

from __future__ import annotations

import functools
import os
import threading
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import ModuleType

__all__ = ["SCHEMES", "obstore", "split_url", "store_of"]

SCHEMES: Final = {
    **{name: name for name in ("s3", "gs", "az", "http", "https", "memory")},
    **{name: name for name in ("s3a", "azure", "abfs", "abfss", "adl")},
    "gcs": "gs",
}
"""The schemes of object stores, as ``obstore`` spells them."""

_CLIENT_OPTIONS: Final = frozenset(
    [
        "allow_http",
        "allow_invalid_certificates",
        "connect_timeout",
        "default_content_type",
        "default_headers",
        "http1_only",
        "http2_keep_alive_interval",
        "http2_keep_alive_timeout",
        "http2_keep_alive_while_idle",
        "http2_only",
        "pool_idle_timeout",
        "pool_max_idle_per_host",
        "proxy_url",
        "proxy_ca_certificate",
        "proxy_excludes",
        "randomize_addresses",
        "read_timeout",
        "root_certificate",
        "timeout",
        "user_agent",
    ]
)
"""The keys that ``obstore`` takes apart from those of a store."""

_OF_FROM_URL: Final = ("client_options", "retry_config", "credential_provider")
_BUCKET_IN_PATH: Final = (
    ".core.windows.net",
    ".fabric.microsoft.com",
    ".r2.cloudflarestorage.com",
)
"""The ends of hosts whose bucket or container is the first part of the path."""

MSG_EXTRA: Final = (
    "{url!r} is in an object store, which needs the library obstore: "
    "pip install tensordict-rs[remote]"
)
MSG_SCHEME: Final = (
    "{url!r} is a URL of the scheme {scheme!r}, which is not supported: object stores are "
    "s3://, gs://, az://, https:// and memory://."
)
MSG_NO_BUCKET: Final = (
    "{url!r} names no bucket: write it as {scheme}://bucket/path/of/the/data."
)
MSG_OPTIONS: Final = (
    "The storage_options of {url!r} are refused: {error} They are the keys of obstore, such "
    "as aws_region, aws_access_key_id, aws_endpoint, allow_http, client_options and "
    "retry_config."
)


def obstore(url: object) -> ModuleType:
    """Import the library.

    Raises:
        ImportError: it is not installed.
    """
    try:
        import obstore as library
        import obstore.store
    except ImportError as error:
        raise ImportError(MSG_EXTRA.format(url=str(url))) from error
    return library


def split_url(url: str) -> tuple[str, str]:
    """Split a URL into that of its bucket, container or server, and the path in that.

    Raises:
        ValueError: it is of another scheme, or names no bucket.

    Examples:
        >>> split_url("s3://bucket/runs/a"), split_url("https://a.org/data")
        (('s3://bucket', 'runs/a'), ('https://a.org', 'data'))
    """
    scheme, _, rest = url.partition("://")
    known = SCHEMES.get(scheme.lower())
    if known is None:
        raise ValueError(MSG_SCHEME.format(url=url, scheme=scheme))
    host, _, path = rest.partition("/")
    if known == "memory":
        return "memory://", "/".join(part for part in (host, path.strip("/")) if part)
    if not host:
        raise ValueError(MSG_NO_BUCKET.format(url=url, scheme=scheme))
    root = path.strip("/")
    base = f"{known}://{host}"
    name = urlsplit(base).hostname or ""
    if known == "https" and (
        name.endswith(_BUCKET_IN_PATH)
        or (name.endswith(".amazonaws.com") and name.startswith(("s3.", "s3-")))
    ):
        bucket, _, root = root.partition("/")
        base = f"{base}/{bucket}"
    return base, root


_stores: dict[Any, Any] = {}
_stores_lock = threading.Lock()


def _forked() -> None:
    global _stores_lock  # noqa: PLW0603 - a thread of the parent may have it
    _stores_lock = threading.Lock()


os.register_at_fork(after_in_child=_forked)


def store_of(base: str, options: Mapping[str, Any], url: str) -> Any:
    """Return the store of a bucket: one a process for the same options, with its connections.

    Raises:
        ImportError: ``obstore`` is not installed.
        ValueError: an option is refused.
    """
    key = base, os.getpid(), _as_key(dict(options))
    with _stores_lock:
        store = _stores.get(key)
        if store is None:
            store = _stores[key] = _new_store(base, options, url)
    return store


def _as_key(value: Any) -> Any:
    if isinstance(value, dict):
        return tuple(sorted((name, _as_key(item)) for name, item in value.items()))
    try:
        hash(value)
    except TypeError:
        return repr(value)
    return value


def _new_store(base: str, options: Mapping[str, Any], url: str) -> Any:
    library = obstore(url)
    if base == "memory://":
        return _memory(library)
    given: dict[str, Any] = dict(options)
    passed: dict[str, Any] = {
        name: given.pop(name) for name in _OF_FROM_URL if name in given
    }
    client: dict[str, Any] = dict(passed.pop("client_options", None) or {})
    for name in list(given):
        plain = name.lower().removeprefix("aws_").removeprefix("azure_")
        plain = plain.removeprefix("google_")
        if plain in _CLIENT_OPTIONS:
            client[plain] = given.pop(name)
    if base.startswith("http://"):
        client.setdefault("allow_http", True)
    if given:
        passed["config"] = {name: _as_text(value) for name, value in given.items()}
    if client:
        passed["client_options"] = client
    try:
        return library.store.from_url(base, **passed)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        # A key that the library does not expect is a panic of its Rust code.
        text = str(error).partition("\n")[0].rstrip(".") + "."
        raise ValueError(MSG_OPTIONS.format(url=url, error=text)) from error


def _as_text(value: object) -> Any:
    return str(value).lower() if isinstance(value, bool) else value


@functools.cache
def _memory(library: Any) -> Any:
    """Return the one store in the memory of this process."""
    return library.store.MemoryStore()
