"""Models on this node: finds those that services name, and downloads, tries, installs and removes their files."""
