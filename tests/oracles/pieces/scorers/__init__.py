"""With which weights attention mixes values."""
