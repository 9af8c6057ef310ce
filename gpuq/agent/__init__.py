"""The node agent: what runs beside the GPUs. Owns the version and protocol numbers the daemon sees.

May import: the standard library only (pynvml in the sampler). Nothing of gpuq outside this package, and it
must run on Python 3.8, since it is copied to nodes whose Python is older than the daemon's.
"""

VERSION = "0.1.0"
PROTOCOL = 1
MARKER = "GPUQ_ATTEMPT_ID"  # in the environment of every process of an attempt; finds leftovers of a dead shim
