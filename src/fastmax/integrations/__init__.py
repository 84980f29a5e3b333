"""Bridges to other libraries, each an extra that is imported only when used."""
