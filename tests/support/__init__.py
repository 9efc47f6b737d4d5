"""Helpers that tests of several parts share."""
