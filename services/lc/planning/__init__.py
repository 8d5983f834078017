"""Which worker processes should run on this node. Pure: from resources to process specifications."""
