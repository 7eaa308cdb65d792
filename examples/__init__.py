"""Programs that use Graft, outside of what is installed."""
