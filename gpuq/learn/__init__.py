"""What is learnt from history."""
