"""The charts of the pages of studies: declarations that a script draws.

study_charts.py  the charts of a study's page
sampling.py      what is drawn of studies of any size
ranges.py        the ranges of values that a page's address has
conditions.py    conditions and orders of trials in which nothing but a comparison can be written
specs.py         the declarations: curves, history, slices, parallel coordinates, effects
"""
