"""Plug-ins from outside the package: found for a space, stored with a study, written from a template."""
