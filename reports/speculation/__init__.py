"""Should speculation be enabled? Its speed-up over the batch and the accepted tokens, and the crossover."""
