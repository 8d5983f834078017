"""Permissions on the broker: the users of a site, and their access rules, which are made from the contract.

A broker with these files denies by default: a role may use only the topics that ``halimede/topics`` grants to it. Of
the nodes, a topic with a node's name is granted only to that node (an exception: ``grants.can_read_all_nodes``); of
the cameras, a camera's topic only to that camera.
"""
