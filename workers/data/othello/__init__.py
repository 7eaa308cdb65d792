"""Othello: its board, and pools of random games."""
