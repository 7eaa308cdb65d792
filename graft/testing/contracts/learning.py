"""The contract of ways of learning: that of whole trials, in `training`."""
