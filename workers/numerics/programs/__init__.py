"""A lane's computation as a program of its own: recorded for one lane, compiled, and run for one lane after another.

`recording` lists the operations of one lane. `lowering` makes of them, by `rules`, loops over elements and products of
matrices. `scheduling` puts loops over the same rows together as kernels and writes these as C++. `running` compiles
them and calls them on each lane's numbers, so that what a lane needs stays in the core's cache. A program knows nothing
of how many lanes there are: a lane's bits are the same in every pack.
"""
