"""Functions of rows of numbers, written once in torch, as C++ for the native steps.

A scorer turns a row of logits into weights, an activation each number of a row into another.
`recording` lists the operations of such a function and its gradient. `reading` turns them into
formulas (`nodes`) of single rows, by `algebra`, `compositions` and `folding`. `writing` turns these
into C++, which `workers.networks.gradients.row_function_cache` compiles and checks.
"""
