"""The loss itself; needs torch and numpy only."""
