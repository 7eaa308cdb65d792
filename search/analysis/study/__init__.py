"""What the trials of one study say: its best trials, their scores, and the data of the figures of its report."""
