"""A stored trial as a script that stands alone: plain PyTorch, with no import of ours."""
