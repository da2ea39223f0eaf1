"""The inside of the package. What users import is in `jax_convgrad`."""
