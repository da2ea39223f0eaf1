"""The benchmark: `python -m jax_convgrad bench`.

One run times the same passes of the same layers in several forms (this package, lax, the best form
in pure JAX, PyTorch), interleaved and by one method, and states the error of every result beside
its time.

    cases.py     what is timed: layers, read from JSON
    forms.py     who computes it: one small class for each form
    float64.py   what the right answer is
    timing.py    how it is timed
    device.py    the same on a GPU, by its own clock: device_clock.py, over cuda_driver.py
    compare.py   any JAX functions of the same operands by the same method
    roofline.py     what no time can be below
    report.py    table, Markdown, JSON, chart
    scaling.py   with --devices: a training step on several devices, reported by scaling_report.py
    cli.py       the command line

Resizes are cases of their own kind, in resize_cases.py, resize_forms.py and resize_float64.py.
"""
