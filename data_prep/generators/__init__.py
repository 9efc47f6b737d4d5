"""Solvers that make raw fields: one file for each problem."""
