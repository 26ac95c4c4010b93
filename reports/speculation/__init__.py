"""Should speculation be turned on? Its speed-up over the batch and the tokens accepted, and the crossover."""
