"""The simulator: traces, a virtual world, peer policies, metrics and bounds."""
