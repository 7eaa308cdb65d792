"""What the pages of studies draw, as <svg> elements whose colours are the style sheet's: they follow light and dark.

study_charts.py  the charts of a study's page
sampling.py      what is drawn of studies of any size
ranges.py        the ranges of values that a page's address has
conditions.py    conditions and orders of trials in which nothing but a comparison can be written
lines.py         points and lines over two axes
parallel.py      parallel coordinates, with the ranges that are kept
axes.py          the range of an axis and its ticks
canvas.py        the element, its grid and its texts
"""
