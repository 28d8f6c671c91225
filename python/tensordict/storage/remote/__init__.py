"""Places in object stores: S3, Google Cloud Storage, Azure, HTTP, and memory.

``place.py`` has :class:`Place`, an object or a folder of objects, with its store, and is
where to start; ``options.py`` makes the store, ``errors.py`` says in a sentence what went
wrong, and ``runtime.py`` runs many requests at once. Requests, signatures, credentials and
retries are those of ``obstore``, which is imported when a place is made, and not before.
"""

from tensordict.storage.remote.place import Found, Place, is_remote, place_of

__all__ = ["Found", "Place", "is_remote", "place_of"]
