"""The services of multi-edge inference, which no script runs here."""
