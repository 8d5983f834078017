"""Re-identification: objects that several cameras see get one identity each, by their features.

``vector_index.py`` searches features, ``store.py`` stores them on disk, ``gallery.py`` combines both, bounded and with
expiry. ``matcher.py`` is the joint: it assigns identities to the objects of a frame (``assignment.py``) and answers
queries about sightings. ``evaluation.py`` measures the accuracy.
"""

from halimede.multiedge.reid.gallery import Gallery
from halimede.multiedge.reid.identity_eviction import EvictionLimits
from halimede.multiedge.reid.matcher import Matcher
from halimede.multiedge.reid.settings import ReidSettings, parse

__all__ = ["EvictionLimits", "Gallery", "Matcher", "ReidSettings", "parse"]
