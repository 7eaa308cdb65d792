"""What a transfer says: its second stage, the compatibility matrix, and which sources are alike."""
