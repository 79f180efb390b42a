"""Batches: the lines of an input file, each sent to a gateway once, and the files that their answers become.

A batch goes from validating (`intake`) to in progress (`driver` claims its lines, `sending` sends them, `outcomes` says
what their answers mean) to finalizing and its end (`results`). All of it is done by periodic work, from rows: whatever
process dies, the next one goes on.
"""
