"""One module per verb; each has a COMMAND and imports only what every call of that verb needs."""
