"""The services of multi-edge inference, which scripts do not run here."""
