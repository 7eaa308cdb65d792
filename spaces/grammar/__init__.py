"""The parts of the language of spaces: YAML with positions, expressions, distributions, leaves read against rules."""
