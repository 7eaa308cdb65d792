"""The pack engine: trials trained together on one device, with evaluation and checkpoints."""
