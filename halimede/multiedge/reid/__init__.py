"""Re-identification: objects that several cameras see get one identity each, by their features.

Features are a unit vector that a model makes of an object's picture. ``vector_index`` searches vectors, ``store``
stores them on disk, ``gallery`` has the known identities, bounded and with expiry. ``matcher`` is the joint: it assigns
identities to the objects of a frame (``assignment``) and answers queries. ``evaluation`` measures the accuracy.
"""

from halimede.multiedge.reid.gallery import Gallery
from halimede.multiedge.reid.identity_eviction import EvictionLimits
from halimede.multiedge.reid.matcher import Matcher
from halimede.multiedge.reid.settings import ReidSettings, parse

__all__ = ["EvictionLimits", "Gallery", "Matcher", "ReidSettings", "parse"]
