"""The web page: what GM knows, for people who look. It reads, and changes nothing."""
