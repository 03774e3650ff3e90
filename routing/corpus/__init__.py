"""Trajectory files to token sequences and their prefix tree."""
