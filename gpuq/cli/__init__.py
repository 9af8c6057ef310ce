"""The command line. May import errors, units and config; the rest of gpuq only inside functions."""
