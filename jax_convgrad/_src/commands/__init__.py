"""The subcommands of `jax-convgrad`, one file each: HELP, `add_arguments` and `run`."""
