"""The sample path of every worker, from intake to answer. So far: where model calls run, and what watches them."""
