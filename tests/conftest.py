"""Fixtures for every test."""

from tests.databases import postgres, url

__all__ = ["postgres", "url"]
