"""Multi-edge inference: several edge workers (members) run one application, and may combine what they find.

An application is a list of stages, which make a finding of each frame, and optionally a joint, which combines the
findings of all members. ``stage`` has both as base classes; ``application`` finds applications by name. The other
modules run them: stages on the member that got the frame or on a peer with free capacity (``peer_offload``), the joint
in one worker (``joint_runner``).
"""

from halimede.multiedge.application import Application, create, register
from halimede.multiedge.stage import Finding, Item, Joint, JointTools, Outcome, Parameters, Stage, Tools

__all__ = [
    "Application",
    "Finding",
    "Item",
    "Joint",
    "JointTools",
    "Outcome",
    "Parameters",
    "Stage",
    "Tools",
    "create",
    "register",
]
