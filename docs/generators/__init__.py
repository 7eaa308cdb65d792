"""The pages of the reference, each made from the code that it describes; nothing of them is kept in the repository."""
