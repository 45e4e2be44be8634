"""Selection by Hilbert inner product: clients whose step helps the posterior of all most.

Yang, Liu and Kassab, "Client Selection for Federated Bayesian Learning", eq. 24 and Algorithm 2: every client sends
its scores at all particles. It differs from ksd in the score alone.
"""

from __future__ import annotations

from fedray.selection import ksd

SELECTION = ksd.SELECTION._replace(summary="in proportion to what their step does for all (HIP)", score="hip")
