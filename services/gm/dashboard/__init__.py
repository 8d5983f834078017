"""The web page of GM: shows nodes, services, events and hard samples. It only reads."""
