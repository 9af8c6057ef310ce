"""Records to text: pure functions from the daemon's JSON objects to lines. May import units."""
