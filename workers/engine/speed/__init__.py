"""The speed of training: measured, estimated from kernels, and the widths of packs by it."""
