"""Decisions. Pure: no clock, random, os, asyncio, logging, SQL or solver; `now` is always an argument."""
