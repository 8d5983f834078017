"""Joint inference: a small model here, a big one with the cloud workers of the same service."""

from halimede.compat.sedna.core.joint_inference.joint_inference import (
    BigModelService,
    JointInference,
    TSBigModelService,
)

__all__ = ("BigModelService", "JointInference", "TSBigModelService")
