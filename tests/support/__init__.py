"""What several test rooms share: fixtures' helpers, servers started for a test. Nothing here is a test."""
