"""The process that launches: how it is interrupted, watched and limited, and what it leaves behind."""
