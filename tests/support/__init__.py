"""Builders, fixtures and stand-ins that the tests share."""
