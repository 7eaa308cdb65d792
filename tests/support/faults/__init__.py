"""A study in a storm: toy workers that are killed, a database that goes away, and an auditor who trusts nobody."""
