"""What a set of runs shows: tables and plots, and the formats that they are written in."""
