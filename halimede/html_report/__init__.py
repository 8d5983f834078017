"""Reports of a run as one HTML file: the page around them, and charts as SVG. Pure; nothing is loaded from elsewhere."""
