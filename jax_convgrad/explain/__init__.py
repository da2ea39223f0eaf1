"""`jax_convgrad.explain`: what a program's convolutions and resizes are, and who computes them.

program.py  the function itself: traces a program and makes its rows
walk.py     where in a traced program equations lie, and how often they run
problem.py  what one equation asks for, its route, its floor, and the functions that compute it
xla.py      what XLA is given where this package does nothing
table.py    the rows as text
"""

from jax_convgrad.explain.program import Explanation, Row, explain
from jax_convgrad.explain.walk import Source

__all__ = ["Explanation", "Row", "Source", "explain"]
