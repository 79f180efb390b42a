"""Batches: the lines of an input file, each run once, and the files that their answers become.

A batch goes from validating (`intake`) to in progress (a gateway's `driver` runs the lines that it `claims`, `outcomes`
says what their answers mean) to finalizing and its end (`results`). Files are the jobs' work, lines the gateways'. All
of it is done from rows: whatever process dies, the next one goes on.
"""
