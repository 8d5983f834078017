"""Worker processes: started, watched, started again, given other models."""
