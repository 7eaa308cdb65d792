"""A lane's computation as a program: recorded for one lane, compiled, and run lane after lane.

`recording` lists the operations of one lane. `lowering` and `rules` turn them into loops and
products of matrices. `scheduling` joins loops over the same rows as kernels in C++. `running`
compiles and calls them, so that a lane's memory stays in the core's cache. A program does not know
the number of lanes: a lane's bits are the same in every pack.
"""
