"""The runtimes of model files, each in one module, which is imported when a file of its format is opened."""
