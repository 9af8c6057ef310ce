"""Figures of this machine: what gpuq costs, beside a peer where one is installed. Not part of the package."""
