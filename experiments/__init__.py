"""Short runnable experiments, one per result worth showing; run them with `python -m experiments.NAME`."""
