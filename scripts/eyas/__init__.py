"""eyas: prepares data for EAGLE-3 draft models, lets the target answer, trains, and measures."""
