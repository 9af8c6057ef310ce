"""Scheduling policies: gpuq's own and the published peers."""
