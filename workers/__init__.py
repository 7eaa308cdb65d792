"""Training: packs of tiny transformers, their plug-in families, and the pools that run packs on devices.

This package imports and trains with torch and numpy alone.
"""
