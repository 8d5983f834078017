"""The sample path: from a source of samples, through the model here and the next tier, to one answer for each."""
