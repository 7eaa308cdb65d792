"""Plug-ins from outside the package: found for a space, and stored with a study."""
