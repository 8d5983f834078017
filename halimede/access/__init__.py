"""Who may do what on the broker: the people and parts of a site, and access rules made from the contract.

A broker that runs with these files denies by default: what ``halimede/topics`` does not grant to a role is not there
for it. What a node's name stands in is granted to that node alone, a camera's topic to that camera alone.
"""
