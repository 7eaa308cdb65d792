"""How fast trials train: measured, estimated from kernels, and the width of packs chosen by it."""
