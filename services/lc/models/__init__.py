"""Models on this node: determines which are needed, downloads, tries, installs and removes them."""
