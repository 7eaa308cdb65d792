"""The trials of one study: the best ones, their scores, and the data of its report's figures."""
