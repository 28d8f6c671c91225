"""Say in a sentence what went wrong at a place, and what to do."""

from __future__ import annotations

import contextlib
import errno
import re
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["explained", "naming"]

MSG_MISSING: Final = (
    "There is no object {url}: check the path, and that it was written."
)
MSG_BUCKET: Final = (
    "There is no bucket of {url}: check its name, and the region and endpoint in "
    "storage_options."
)
MSG_DENIED: Final = (
    "Access to {url} was denied ({found}): check the credentials in the environment or in "
    "storage_options (aws_access_key_id and aws_secret_access_key for S3, "
    "google_service_account for Google Cloud Storage, azure_storage_account_key for Azure), "
    "and what they permit; for a public bucket pass storage_options={{'skip_signature': "
    "True}}."
)
MSG_REGION: Final = (
    "The bucket of {url} is in another region ({found}): pass "
    "storage_options={{'aws_region': '...'}} with the region of the bucket."
)
MSG_CHANGED: Final = (
    "The object {url} changed since the metadata was read: load the collection again."
)
MSG_EXISTS: Final = "There is an object {url} already, which was not to be replaced."
MSG_FAILED: Final = (
    "Cannot read or write {url}{part}: {found}, after {tries} tries. Check the network and "
    "the server, or allow more with storage_options={{'retry_config': {{'max_retries': "
    "20}}}}."
)
MSG_OTHER: Final = "Cannot read or write {url}{part}: {found}."
MSG_BROKEN: Final = (
    "Cannot read or write {url}{part}: the answer broke off ({found}), in each of {tries} "
    "tries. Check the network and the server, or allow more with storage_options="
    "{{'retry_config': {{'max_retries': 20}}}}."
)
MSG_PLAIN_HTTP: Final = (
    "{url} was asked for at an endpoint without TLS: pass storage_options={{'allow_http': "
    "True}} if that is meant."
)

_RETRIES_OF_LIBRARY: Final = 10

NO_CREDENTIALS: Final = "no credentials were found"

_METADATA_SERVICES: Final = (
    "169.254.169.254",
    "metadata.google.internal",
    "169.254.170.2",
)
"""The addresses that are asked for credentials last, on machines of a cloud."""

_STATUS: Final = re.compile(r"status(?: code)?:? (\d{3}[^:\n]*)")
_RETRIES: Final = re.compile(r"after (\d+) retries")
_REGION: Final = re.compile(r"region|PermanentRedirect|AuthorizationHeaderMalformed")
_CODE: Final = re.compile(r"<Code>(\w+)</Code>")
_MESSAGE: Final = re.compile(r"<Message>([^<]+)</Message>")


def explained(
    error: BaseException, url: object, span: tuple[int, int] | None = None
) -> BaseException:
    """Return the error to raise for one of ``obstore``.

    Args:
        error: the error of the library.
        url: the object that was asked for.
        span: the bytes that were, from the first to the one behind the last.
    """
    name = type(error).__name__
    text = str(error)
    place = str(url)
    if isinstance(error, FileNotFoundError) or name == "NotFoundError":
        message = MSG_BUCKET if "NoSuchBucket" in text else MSG_MISSING
        return FileNotFoundError(errno.ENOENT, message.format(url=place))
    if name == "PreconditionError":
        return RuntimeError(MSG_CHANGED.format(url=place))
    if name == "AlreadyExistsError" or isinstance(error, FileExistsError):
        return FileExistsError(errno.EEXIST, MSG_EXISTS.format(url=place))
    found = _found(text)
    if any(address in text for address in _METADATA_SERVICES):
        return PermissionError(
            errno.EACCES, MSG_DENIED.format(url=place, found=NO_CREDENTIALS)
        )
    if _REGION.search(text) and ("redirect" in text.lower() or "region" in found):
        return OSError(MSG_REGION.format(url=place, found=found))
    denied = ("PermissionDeniedError", "UnauthenticatedError")
    is_expired = "ExpiredToken" in found
    if name in denied or is_expired or isinstance(error, PermissionError):
        return PermissionError(errno.EACCES, MSG_DENIED.format(url=place, found=found))
    part = "" if span is None else f", bytes {span[0]} to {span[1] - 1}"
    tries = _RETRIES.search(text)
    message = MSG_OTHER if tries is None else MSG_FAILED
    count = 0 if tries is None else int(tries[1]) + 1
    if "BadScheme" in text:
        message = MSG_PLAIN_HTTP
    elif tries is None and "response body error" in text and "list" not in text:
        message, count = MSG_BROKEN, _max_tries(url)
    return OSError(message.format(url=place, part=part, found=found, tries=count))


def _max_tries(url: Any) -> int:
    """Return how often a request is made at most to a place."""
    config = getattr(url, "options", {}).get("retry_config") or {}
    return 1 + int(config.get("max_retries", _RETRIES_OF_LIBRARY))


def _found(text: str) -> str:
    """Return what the server said: its status, its code, and its message."""
    status = _STATUS.search(text)
    said = [
        found[1].strip()
        for found in (_CODE.search(text), _MESSAGE.search(text))
        if found
    ]
    if status is not None:
        return ": ".join([f"status {status[1].strip()}", *said]).rstrip(".:")
    first = text.partition("\n")[0]
    # The cause comes last: "... - HTTP error: error sending request".
    return ": ".join([first.rpartition(" - ")[2].strip(), *said]).rstrip(".:")


@contextlib.contextmanager
def naming(url: object, span: tuple[int, int] | None = None) -> Iterator[None]:
    """Explain the errors of ``obstore`` that a block raises."""
    try:
        yield
    except Exception as error:
        if not _is_of_library(error):
            raise
        raise explained(error, url, span) from error


def _is_of_library(error: Any) -> bool:
    module = type(error).__module__ or ""
    plain = (FileNotFoundError, FileExistsError, PermissionError)
    return module.startswith(("obstore", "pyo3")) or (
        type(error) in plain and "Debug source" in str(error)
    )
