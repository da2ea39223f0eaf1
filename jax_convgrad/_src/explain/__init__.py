"""A program's convolutions and resizes, and what computes each of them.

program.py    `explain` itself: traces a program and makes its rows
walk.py       where in a traced program equations lie, and how often they run
equations.py  what one equation asks for, its decision, its roofline, and the functions that compute it
xla.py        what XLA is given where this package does nothing
similar.py    what makes problems alike: their kind, XLA's form of them included, and their sizes
gain.py       the gain to expect, from similar problems that were measured (measured.json)
roofline.py   bytes and operations that no program for a problem can do without
rows.py       what is said of one
table.py      the rows as text

The command line is `commands/explain.py`.
"""
