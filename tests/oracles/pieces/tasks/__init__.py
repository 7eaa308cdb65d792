"""What tasks draw, and how answers to them are evaluated."""
