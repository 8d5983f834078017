"""The checks of ``halimede doctor`` (``commands/doctor.py``): of this machine, the broker and the system."""
