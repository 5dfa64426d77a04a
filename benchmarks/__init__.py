"""Speed as ratios in one run, against simple baselines and peers."""
