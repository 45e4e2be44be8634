"""FedRay: personalized Bayesian federated learning on Ray.

    import fedray
    model = fedray.load("runs/my-run")
    model.predict(x, client=3).mutual_information

A federation in a notebook, in this process and without Ray: see docs/design.md, "As a library".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedray.result import load

__all__ = ["load"]


def __getattr__(name: str) -> Any:
    # PyTorch takes seconds to import: `import fedray` alone, as every `python -m fedray.…` does, should not.
    if name in __all__:
        from fedray import result

        return getattr(result, name)
    raise AttributeError(f"module 'fedray' has no attribute {name!r}")
