"""The way of samples: from their intake, through the model here and the next tier, to one answer for each.

``Pipeline`` runs it, ``workers`` builds the two usual configurations. An intake accepts samples, mining decides which
are hard, the upload policy which of them go to the next tier, and a responder publishes the answers.
"""
