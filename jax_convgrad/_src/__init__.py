"""The package's internals. What users import is in `jax_convgrad`."""
