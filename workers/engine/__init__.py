"""The pack engine: many trials trained together on one device, with their evaluation, checkpoints, memory and width."""
