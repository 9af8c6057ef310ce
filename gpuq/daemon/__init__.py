"""The shell around the core: clock, journal, links and the socket. The only place with an event loop."""
