"""Commands in processes of their own that are disturbed: killed at a chosen event, short of disk or memory, signalled.

client.py        what a test says: start this command with these disturbances, and wait for it
server.py        a process that has imported everything once and forks a child for each command
disturbances.py  what is done to a child, in the child itself
witness.py       what a child had committed when it died
aftermath.py     what is in a database and a folder: compared with what an undisturbed command leaves
"""
