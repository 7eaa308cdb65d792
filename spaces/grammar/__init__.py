"""The language of spaces: YAML with positions, expressions, distributions, leaves and rules."""
