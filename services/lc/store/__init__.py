"""What a local controller keeps on disk, and how it decides what of GM's messages is newer."""
