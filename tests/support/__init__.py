"""Helpers and fixtures that several test folders share: fakes, simulated parts, servers for one test. No tests."""
