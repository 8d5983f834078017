"""Models on this node: finds which are needed, and downloads, tries, installs and removes their files."""
