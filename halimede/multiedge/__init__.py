"""Multi-edge inference: several edge workers (members) run one application, and may combine what they find.

An application is a list of stages, whose result for a frame is a finding, and optionally a joint, which combines the
findings of all members. ``stage`` has the base classes of both; ``application`` finds applications by name. The other
modules run them: stages on the member that got the frame or on a peer with free capacity (``peer_offload``), the joint
in one worker at a time (``joint_runner``). ``show`` prints the parts of an application.
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
