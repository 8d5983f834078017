"""One model for its user, whichever tier answers.

It consists of the same parts as a service: the edge worker's loop runs in this process, and the further tiers run here
as well, or are a service's tiers over the bus. There is no server to run, and no second implementation.
"""

from halimede.joint_model.answer import Answer, NoAnswerError
from halimede.joint_model.model import JointModel
from halimede.joint_model.tiers import Rule, Tier

__all__ = ["Answer", "JointModel", "NoAnswerError", "Rule", "Tier"]
