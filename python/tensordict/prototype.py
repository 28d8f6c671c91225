"""Re-export of ``tensorclass`` under the path of early releases."""

from tensordict.tensorclass import tensorclass

__all__ = ["tensorclass"]
