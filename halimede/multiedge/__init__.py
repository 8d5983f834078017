"""Multi-edge inference: a graph of stages over several edge nodes (seed 000).

``stage.py`` has the building blocks of an application, ``application.py`` assembles them and finds applications by
name. The other modules run it: stages on the worker of a frame or on a peer with free capacity (``balance``), and the
joint, in which findings of several workers come together (``joint_runner``).
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
