"""What runs at the researcher: rounds, store, engines, comparison, the command line."""
