"""Selection by Hilbert inner product, of which the server uses only the sum of the clients' scores and N scalars.

The same probabilities as hip, at the price of a second pass over every shard.
"""

from __future__ import annotations

from fedray.selection import hip

SELECTION = hip.SELECTION._replace(summary="hip from a sum of scores and one number per client", score="hip_two_phase")
