from typing import Final

# build.rs: how the extension was built.
__version__: Final[str]
core_version: Final[str]
is_debug_build: Final[bool]
