"""Meet the rest of the ecosystem: torch functions, pytrees, other libraries."""
