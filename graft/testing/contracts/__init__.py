"""One file for each family: its checks, functions `check_...(configuration)`."""
