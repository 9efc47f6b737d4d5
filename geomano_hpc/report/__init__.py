"""The end of a study: tables with what was measured beside what was published, and pictures."""
