"""Sedna's servers. The bus replaces them here: only their names remain."""
