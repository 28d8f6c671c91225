"""How containers meet the rest of the ecosystem: torch functions, pytrees, compile."""
