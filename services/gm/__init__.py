"""Global manager: keeps what users want, tells each node its part, and says how it stands."""
