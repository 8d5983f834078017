"""What scripts written for other systems need to run here with their imports changed."""
