"""The benchmark: `python -m jax_convgrad bench`.

One run times the same passes of the same layers in several forms (this package, lax, the best form in pure
JAX, PyTorch), interleaved and by one method (`_src/timing`), and reports the error of every result beside
its time.

    cli.py         the command line
    case_files.py  the layers to time, read from JSON
    cases.py       a convolution
    forms/         the contenders
    float64.py     the right answers
    roofline.py    lower bounds on times
    timing.py      the run: each form checked, then timed in turn
    summary.py     forms compared
    report.py      table, Markdown and JSON, over tables.py and provenance.py
    chart.py       a bar chart
    scaling.py     with --devices: a training step on several devices, reported by scaling_report.py

Resizes are cases of their own kind, in resize_cases.py, resize_float64.py and forms/resize.py.
"""
