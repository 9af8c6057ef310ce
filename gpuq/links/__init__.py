"""Ways to reach a node's agent: all send and receive the frames of docs/agent-protocol.md."""
