"""Bridges to other libraries, each an extra that is imported only where it is asked for."""
