"""Every value that crosses a boundary: frozen, slotted, valid once built."""
