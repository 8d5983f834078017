"""Reports of a run as one HTML file that loads nothing: the page around them, and charts as SVG. Pure."""
