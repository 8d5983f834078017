"""Global manager: stores the desired state, sends each node its part, and reports the status."""
