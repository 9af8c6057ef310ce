"""Facts about GPU models that ship with gpuq; see `catalogue`."""
