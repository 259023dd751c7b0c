"""Histories of what clients asked and were answered, and a checker that says whether one coordinator explains them.

A history is linearizable if each answered call can be given one moment between its invocation and its response, such
that a single copy of the data, asked at those moments, gives the same answers. It is checked by Wing and Gong's search
with the memory that Lowe added. A call whose outcome is unknown may have happened at any later moment, or never.
"""
