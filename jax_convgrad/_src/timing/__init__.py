"""Times JAX functions: one method, for the benchmark and for `explain(measure=True)`.

method.py        the settings of a run
runner.py        a function, ready to be called again and again
calls.py         its calls on a CPU, by the host's clock
device.py        its calls on a GPU, by the GPU's own clock
device_clock.py  marks on the GPU's timeline
cuda_driver.py   the driver functions that this needs
processors.py    threads and caches
samples.py       the median and its spread
compare.py       several functions of the same operands, interleaved
"""
