"""What a search and a training step cost, as ratios measured in one run."""
