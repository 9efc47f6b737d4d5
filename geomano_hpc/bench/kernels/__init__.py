"""Speed, memory and GPU audit of the scan backends."""
