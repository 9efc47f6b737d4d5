"""Training against Transolver: time, memory, and what the loop adds."""
