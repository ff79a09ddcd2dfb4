"""What every method shares: configs, model loading, the dataset loop and the record of a run."""
