"""What models compute."""
