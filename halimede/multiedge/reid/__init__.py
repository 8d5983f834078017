"""Re-identification: objects that several cameras see get one identity each, by their features.

``vector_index.py`` looks features up, ``store.py`` keeps them over restarts, ``gallery.py`` is both, bounded and
expiring. ``matcher.py`` is the joint: it says which object of a frame is which (``assignment.py``) and answers where
somebody was seen. ``evaluation.py`` measures how well.
"""

from halimede.multiedge.reid.gallery import Gallery
from halimede.multiedge.reid.identity_eviction import EvictionLimits
from halimede.multiedge.reid.matcher import Matcher
from halimede.multiedge.reid.settings import ReidSettings, parse

__all__ = ["EvictionLimits", "Gallery", "Matcher", "ReidSettings", "parse"]
