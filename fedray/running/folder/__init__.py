"""The folder of a run from its first moment: what it takes to go on with it, and who may.

run.json       the experiment, where it is tracked, how it was executed (notes.py)
status.json    how far it is
log.txt        what was said of it, its rounds and failures, what its processes printed
failures.csv   its failures so far, if there are any
checkpoints/   the federation after the last few rounds, unless --checkpoint.url says elsewhere
(the result)   see writer.py; config.json comes last and says that the run is finished
"""
