"""What the documents that define the system say, as a table of facts, and worlds in which each fact is checked."""
