"""Functions of rows of numbers, written once in torch, as C++ for the native steps.

A scorer turns a row of logits into a row of weights, an activation a row of one number into another. `reading` records
such a function with its gradient on a small example and turns the recording into formulas (`nodes`) of single rows;
`writing` writes these as C++ over vector registers. `workers.numerics.native.generated` compiles and loads the text.
"""
