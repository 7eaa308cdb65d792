"""A lane's computation as a program: recorded for one lane, compiled, and run lane after lane.

`recording` lists the operations of one lane. `lowering` and `rules` turn them into loops over
elements and products of matrices. `scheduling` joins loops over the same rows as kernels in C++.
`running` compiles the kernels and calls them lane after lane, so that a lane's memory stays in the
core's cache. A program is independent of the number of lanes: a lane's bits are the same in every
pack.
"""
