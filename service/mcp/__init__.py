"""Runs led by agents from outside, through the Model Context Protocol."""
