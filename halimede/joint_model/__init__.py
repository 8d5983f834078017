"""``halimede.JointModel``: a small model and bigger ones that answer its hard samples, as one model for its user.

It consists of the same parts as a service. The edge worker's loop runs in this process; the further tiers run here as
well, or are a service's tiers over the bus. There is no server to run.
"""

from halimede.joint_model.answer import Answer, NoAnswerError
from halimede.joint_model.model import JointModel
from halimede.joint_model.tiers import Rule, Tier

__all__ = ["Answer", "JointModel", "NoAnswerError", "Rule", "Tier"]
