"""Charts of the pages as <svg> elements, whose colours are the style sheet's: they follow the light and the dark.

axes.py       the range of an axis and its ticks
canvas.py     the element, its grid and its texts
charts.py     points and lines over two axes
parallel.py   parallel coordinates, with the ranges that are kept
"""
