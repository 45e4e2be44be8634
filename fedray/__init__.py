"""FedRay: personalized Bayesian federated learning on Ray.

    import fedray
    model = fedray.load("runs/my-run")
    model.predict(x, client=3).mutual_information

A federation in a notebook, in this process and without Ray: see docs/design.md, "As a library".
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedray.run.predictor import load

__all__ = ["load"]

# Without it, MKL may sum a product of small matrices in another order when it is one of a stack (seen on AMD). MKL
# reads it at its first product, hence here, before PyTorch is imported.
os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")


def __getattr__(name: str) -> Any:
    # PyTorch takes seconds to import: `import fedray` alone, as every `python -m fedray.…` does, should not.
    if name in __all__:
        from fedray.run import predictor

        return getattr(predictor, name)
    raise AttributeError(f"module 'fedray' has no attribute {name!r}")
