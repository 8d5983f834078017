"""One model to its user: whichever tier answers.

The tiers are those of a service, made of the same parts: the edge worker's loop runs in this process, and the tiers
that it asks are here, too, or a service's own over the bus. There is no server to run, and no second implementation.
"""

from halimede.joint_model.answer import Answer, NoAnswerError
from halimede.joint_model.model import JointModel
from halimede.joint_model.tiers import Rule, Tier

__all__ = ["Answer", "JointModel", "NoAnswerError", "Rule", "Tier"]
