"""gpuq: a job queue for GPUs."""

__version__ = "0.1.0"
